/** Lists that change while they are looked at: rows keep their places, values change, new rows come last. */
export function inPlace<T>(before: T[], fresh: T[], key: (item: T) => string | number): T[] {
  const now = new Map(fresh.map((item) => [key(item), item]));
  const out: T[] = [];
  for (const item of before) {
    const found = now.get(key(item));
    if (found === undefined) continue;
    out.push(found);
    now.delete(key(item));
  }
  return [...out, ...now.values()];
}

export type Open = { node: string; status: string | null; shown: number };

export const SHOWN_FIRST = 6;
export const SHOWN_STEP = 50;

/** Open fan-outs in the address: `process`, `process:failed`, `process::56`; several with commas between. `-` is none. */
export function readOpen(text: string | null): Open[] | null {
  if (text === null) return null;
  if (text === "-") return [];
  return text.split(",").flatMap((part) => {
    const [node, status, shown] = part.split(":").map(decodeURIComponent) as [string, string?, string?];
    return node ? [{ node, status: status || null, shown: Math.min(Number(shown) || SHOWN_FIRST, 5000) }] : [];
  });
}

export function writeOpen(open: Open[]): string {
  if (open.length === 0) return "-";
  const safe = (s: string) => encodeURIComponent(s);
  return open
    .map((o) =>
      [safe(o.node), o.status ?? "", o.shown === SHOWN_FIRST ? "" : String(o.shown)].join(":").replace(/:+$/, ""),
    )
    .join(",");
}
