/** What part of time is looked at, in the address: nothing for all of it, `10m`, `selection`, or seconds since the start: `120-340.5`. */

export type Zoom =
  | { kind: "fit" }
  | { kind: "last" }
  | { kind: "selection" }
  | { kind: "window"; from: number; to: number };

export const LAST_MS = 600_000;

export function readZoom(text: string | null): Zoom {
  if (text === "10m") return { kind: "last" };
  if (text === "selection") return { kind: "selection" };
  const match = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(text ?? "");
  const [from, to] = match ? [Number(match[1]), Number(match[2])] : [0, 0];
  return to > from ? { kind: "window", from, to } : { kind: "fit" };
}

export function writeZoom(zoom: Zoom): string | null {
  if (zoom.kind === "window") return `${short(zoom.from)}-${short(zoom.to)}`;
  return { fit: null, last: "10m", selection: "selection" }[zoom.kind];
}

function short(n: number): string {
  return String(Math.max(0, Math.round(n * 1000) / 1000));
}

/** As milliseconds of the clock; null: all of it. */
export function windowOf(
  zoom: Zoom,
  from: number,
  to: number,
  selected: [number, number] | null,
): [number, number] | null {
  if (zoom.kind === "last") return to - from > LAST_MS ? [to - LAST_MS, to] : null;
  if (zoom.kind === "window") return [from + zoom.from * 1000, from + zoom.to * 1000];
  if (zoom.kind !== "selection" || !selected) return null;
  const margin = Math.max((selected[1] - selected[0]) * 0.06, 1);
  return [selected[0] - margin, selected[1] + margin];
}
