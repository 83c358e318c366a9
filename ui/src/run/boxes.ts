/** Segments of a lane as boxes on the time axis. */
import { duration } from "../format/durations";
import { clock, clockMillis, ms } from "../format/times";
import { type Scale, x } from "./scale";
import type { Segment, SegmentKind, TimelineNode } from "./types";

export interface LaneBox {
  kind: SegmentKind;
  left: number;
  width: number;
  title: string;
  key: string;
}

const WORDS: Record<SegmentKind, string> = {
  queued: "queued",
  running: "running",
  success: "success",
  failed: "failed attempt",
  cancelled: "cancelled",
  backoff: "backoff",
  timer: "timer",
  waiting: "waiting",
  expected: "expected",
};
export const CLASSES: Record<SegmentKind, string> = {
  queued: "q",
  running: "r",
  success: "s",
  failed: "f",
  cancelled: "c",
  backoff: "b",
  timer: "t",
  waiting: "w",
  expected: "e",
};
const WORK: SegmentKind[] = ["running", "success", "failed", "cancelled"];

/** Boxes that are in sight. What is open grows to `now`. */
export function boxes(segments: Segment[], scale: Scale, now: number | null): LaneBox[] {
  const edge = scale.pieces.at(-1)?.to ?? scale.to;
  return segments.flatMap((s, n) => {
    const from = ms(s.from);
    const to = n === segments.length - 1 && isOpen(s.kind) && now !== null ? Math.max(now, ms(s.to)) : ms(s.to);
    if (to < scale.from || from > edge) return [];
    const left = x(scale, Math.max(from, scale.from));
    return [
      {
        kind: s.kind,
        left,
        width: Math.max(x(scale, to) - left, 0),
        title: titleOf(s, from, to),
        key: `${n}${s.kind}`,
      },
    ];
  });
}

function isOpen(kind: SegmentKind): boolean {
  return kind === "running" || kind === "queued" || kind === "backoff" || kind === "waiting";
}

function titleOf(s: Segment, from: number, to: number): string {
  const seconds = (to - from) / 1000;
  const shown = seconds < 10 ? clockMillis : clock;
  const who = [s.attempt ? `attempt ${s.attempt}` : "", s.worker ? `on ${s.worker}` : ""].filter(Boolean).join(" ");
  return `${WORDS[s.kind]}${who ? `, ${who}` : ""}: ${shown(from)} to ${shown(to)}, ${duration(seconds)}`;
}

/** How long the last attempt took, or the wait. */
export function lastWork(segments: Segment[], now: number | null): number | null {
  const work = segments.filter((s) => WORK.includes(s.kind));
  const last = work.at(-1) ?? segments.filter((s) => s.kind === "timer" || s.kind === "waiting").at(-1);
  if (!last) return null;
  const open = last.kind === "running" || (last.kind === "waiting" && last === segments.at(-1));
  const to = open && now !== null ? Math.max(now, ms(last.to)) : ms(last.to);
  return (to - ms(last.from)) / 1000;
}

/** The words beside a lane. */
export function laneWords(
  row: { status: string; segments: Segment[]; after?: string[]; worker?: string | null },
  now: number | null,
): string {
  const last = row.segments.at(-1);
  if (!last) return row.after?.length && row.status === "pending" ? `after ${row.after.join(", ")}` : "";
  if (last.kind === "queued" && (row.status === "pending" || row.status === "dispatched")) {
    if (row.status === "dispatched" && row.worker) return `sent to ${row.worker}`;
    const since = row.segments.findLast((s) => s.kind !== "queued");
    const from = since ? ms(since.to) : ms(row.segments[0]?.from ?? last.from);
    return `queued ${duration(((now ?? ms(last.to)) - from) / 1000)}`;
  }
  const took = lastWork(row.segments, now);
  return took === null ? "" : duration(took);
}

/** From when to when a node has been drawn, for zooming to it. */
export function extent(segments: Segment[], node: TimelineNode | null, now: number): [number, number] | null {
  const from = segments[0] ? ms(segments[0].from) : node?.started_at ? ms(node.started_at) : null;
  if (from === null) return null;
  const last = segments.at(-1);
  const to = last ? ms(last.to) : node?.finished_at ? ms(node.finished_at) : now;
  return to > from ? [from, to] : null;
}

export interface Expected {
  from: number;
  to: number;
}

/** When nodes that have not begun are expected, from how long they took before: each after those before it. */
export function forecast(nodes: TimelineNode[], now: number): Map<string, Expected> {
  const known = new Map(nodes.map((n) => [n.node, n]));
  const ends = new Map<string, number>();
  const out = new Map<string, Expected>();
  const endOf = (name: string): number => {
    const found = ends.get(name);
    if (found !== undefined) return found;
    ends.set(name, now); // a way back in a graph leads here again
    const node = known.get(name);
    const end = node ? endOfNode(node) : now;
    ends.set(name, end);
    return end;
  };
  const endOfNode = (node: TimelineNode): number => {
    if (node.finished_at) return Math.min(ms(node.finished_at), now);
    if (node.status === "skipped" || node.status === "cancelled") return now;
    const length = (node.expected_s ?? 0) * 1000;
    if (node.started_at) return Math.max(now, ms(node.started_at) + length);
    if (node.segments.length > 0) return now + length;
    const from = Math.max(now, ...node.after.map(endOf));
    if (node.status === "pending" && node.expected_s !== null) out.set(node.node, { from, to: from + length });
    return from + length;
  };
  for (const node of nodes) endOf(node.node);
  return out;
}

/** Bars of a fan-out as one path: work at a time, drawn up from the foot. `height` is that of the lane. */
export function binPath(
  values: number[],
  from: number,
  binMs: number,
  scale: Scale,
  most: number,
  height: number,
  width: number,
  least = 0,
): string {
  let d = "";
  values.forEach((n, k) => {
    if (n <= 0) return;
    const [start, end] = [from + k * binMs, from + (k + 1) * binMs];
    if (end < scale.from || start > scale.to) return;
    const left = x(scale, Math.max(start, scale.from)) * width;
    const right = x(scale, Math.min(end, scale.to)) * width;
    const tall = Math.max(Math.min(n / (most || 1), 1) * height, least);
    const gap = right - left > 2.5 ? 0.7 : 0;
    d += `M${left.toFixed(1)} ${height}V${(height - tall).toFixed(1)}H${Math.max(right - gap, left + 0.5).toFixed(1)}V${height}Z`;
  });
  return d;
}

/** Fewer bins, so that each bar can be seen: work on average, failures together. */
export function coarser(bins: { bin_s: number; running: number[]; failed: number[] }, most: number) {
  const step = Math.ceil(bins.running.length / Math.max(most, 1));
  if (step <= 1) return bins;
  const at = Array.from({ length: Math.ceil(bins.running.length / step) }, (_, n) => n * step);
  const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);
  return {
    bin_s: bins.bin_s * step,
    running: at.map((n) => Math.ceil(sum(bins.running.slice(n, n + step)) / bins.running.slice(n, n + step).length)),
    failed: at.map((n) => sum(bins.failed.slice(n, n + step))),
  };
}
