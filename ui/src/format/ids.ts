/** Ids are shortened in the middle and copied whole. */
export function shortId(id: string): string {
  const plain = id.replaceAll("-", "");
  return plain.length <= 12 ? id : `${plain.slice(0, 4)}…${plain.slice(-4)}`;
}

/** Versions are often hashes: seven characters tell them apart, also of those of flows, which begin with `flow-`. */
export function shortVersion(version: string): string {
  const hash = /^(?:flow-)?([0-9a-f]{7})(?=[0-9a-f]{5,}$)/i.exec(version);
  return hash?.[1] ?? version;
}
