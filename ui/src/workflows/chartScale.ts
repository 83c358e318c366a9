/** Scales and paths of the charts. A value that is not known leaves a gap. */

export interface Box {
  width: number;
  height: number;
}

const HEADROOM = 1.15;

type Value = number | null | undefined;

/** A round number at or above `max`: 1, 2 or 5 times a power of ten. */
export function niceTop(max: number): number {
  if (!(max > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(max));
  for (const step of [1, 1.5, 2, 3, 5, 7.5, 10]) if (max <= step * power * (1 + 1e-9)) return step * power;
  return 10 * power;
}

/** The top of a chart: some room above the highest value, so that even days do not look like a ceiling. */
export function topOf(...series: Value[][]): number {
  return niceTop(Math.max(0, ...series.flat().map((v) => v ?? 0)) * HEADROOM);
}

/** The middle of the n-th of `count` columns. */
export function x(n: number, count: number, box: Box): number {
  return round(((n + 0.5) / count) * box.width);
}

export function y(value: number, top: number, box: Box): number {
  return round(box.height - (Math.min(value, top) / top) * box.height);
}

function round(v: number): number {
  return Math.round(v * 10) / 10;
}

export interface Bar {
  x: number;
  y: number;
  width: number;
  height: number;
}

export function bars(values: Value[], top: number, box: Box, gap = 0.24): Bar[] {
  const step = box.width / Math.max(values.length, 1);
  return values.map((value, n) => {
    const at = y(value ?? 0, top, box);
    // What is there must be seen, however small beside the rest.
    const height = value ? Math.max(box.height - at, 1.5) : 0;
    return { x: round((n + gap / 2) * step), y: box.height - height, width: round(step * (1 - gap)), height };
  });
}

/** Runs of known values, as [index, value]. */
export function stretches(values: Value[]): [number, number][][] {
  const out: [number, number][][] = [];
  let open: [number, number][] | null = null;
  values.forEach((value, n) => {
    if (value === null || value === undefined) {
      open = null;
      return;
    }
    if (!open) {
      open = [];
      out.push(open);
    }
    open.push([n, value]);
  });
  return out;
}

/** A lone point is drawn as a short dash, since a line of one point has no length. */
export function linePath(values: Value[], top: number, box: Box): string {
  const half = box.width / Math.max(values.length, 1) / 3;
  return stretches(values)
    .map((points) => {
      const [first] = points as [[number, number]];
      if (points.length === 1) {
        const middle = x(first[0], values.length, box);
        return `M${round(middle - half)} ${y(first[1], top, box)}H${round(middle + half)}`;
      }
      return points
        .map(([n, v], at) => `${at === 0 ? "M" : "L"}${x(n, values.length, box)} ${y(v, top, box)}`)
        .join("");
    })
    .join("");
}

/** The area between two series, or between one and the ground. */
export function areaPath(upper: Value[], lower: Value[] | null, top: number, box: Box): string {
  const both = upper.map((v, n) => (v === null || v === undefined || (lower && lower[n] == null) ? null : v));
  return stretches(both)
    .filter((points) => points.length > 1)
    .map((points) => {
      const there = points.map(([n, v]) => `${x(n, upper.length, box)} ${y(v, top, box)}`);
      const back = [...points]
        .reverse()
        .map(([n]) => `${x(n, upper.length, box)} ${lower ? y(lower[n] as number, top, box) : box.height}`);
      return `M${[...there, ...back].join("L")}Z`;
    })
    .join("");
}

/** About `wanted` indexes of `count` columns, evenly apart, the last one always among them. */
export function ticks(count: number, wanted = 5): number[] {
  if (count === 0) return [];
  const n = Math.min(wanted, count);
  if (n === 1) return [count - 1];
  return Array.from({ length: n }, (_, k) => Math.round((k * (count - 1)) / (n - 1)));
}

export function median(values: Value[]): number | null {
  const known = values.filter((v): v is number => v !== null && v !== undefined).sort((a, b) => a - b);
  if (known.length === 0) return null;
  const half = Math.floor(known.length / 2);
  return known.length % 2 ? (known[half] as number) : ((known[half - 1] as number) + (known[half] as number)) / 2;
}

/** Days of each side that a comparison needs; fewer are chance. */
const DAYS_COMPARED_MIN = 3;
const CHANGE_MIN = 0.05;

/** How much longer runs take since day `since`, as a part of what they took before; null when that cannot be said. */
export function changeSince(values: Value[], since: number): number | null {
  const before = values.slice(0, since).filter((v) => v != null);
  const after = values.slice(since).filter((v) => v != null);
  if (before.length < DAYS_COMPARED_MIN || after.length < DAYS_COMPARED_MIN) return null;
  const was = median(before);
  const is = median(after);
  if (!was || is === null) return null;
  const change = is / was - 1;
  return Math.abs(change) < CHANGE_MIN ? null : change;
}
