/** The time brush: a range of `created` in the query text, and its place on the histogram. */

import type { Schemas } from "../api/client";
import { isBound, partsOf, withoutParts, withTerm } from "./chips";
import type { Term } from "./query";
import { momentOf } from "./query";

export interface Range {
  from: number;
  to: number;
}

/** The range that the query asks for; ends it does not name are those of `window`. Null without any. */
export function rangeOf(text: string, window: Range, now: number): Range | null {
  const bounds = partsOf(text)?.map((part) => part.node) ?? [];
  const at = (ops: string[]) => {
    const found = bounds.find((node) => isBound(node, ops)) as Term | undefined;
    return found ? momentOf(found.values[0]?.text ?? "", now) : null;
  };
  const [from, to] = [at([">", ">="]), at(["<", "<="])];
  if (from === null && to === null) return null;
  return { from: from ?? window.from, to: to ?? window.to };
}

/** The text with this range of `created` in place of the one it has. A range up to now has no end, so that it goes on. */
export function withRange(text: string, range: Range | null, window: Range): string {
  const old = (partsOf(text) ?? []).filter((part) => isBound(part.node, ["<", "<=", ">", ">="]));
  const rest = old.length > 0 ? withoutParts(text, old) : text;
  if (!range) return rest;
  const open = range.to >= window.to;
  const said = `created >= ${writeMoment(range.from)}${open ? "" : ` and created < ${writeMoment(range.to)}`}`;
  return withTerm(rest, said);
}

/** In the viewer's zone, to the minute where it is one. */
export function writeMoment(at: number): string {
  const date = new Date(at);
  const offset = -date.getTimezoneOffset();
  const local = new Date(at + offset * 60_000).toISOString();
  const clock = at % 60_000 === 0 ? local.slice(0, 16) : local.slice(0, 19);
  if (offset === 0) return `${clock}Z`;
  const two = (n: number) => String(Math.trunc(Math.abs(n))).padStart(2, "0");
  return `${clock}${offset < 0 ? "-" : "+"}${two(offset / 60)}:${two(offset % 60)}`;
}

/** The share of the window at which a moment lies, from 0 to 1. */
export function shareOf(at: number, window: Range): number {
  const width = window.to - window.from;
  return width <= 0 ? 0 : Math.min(1, Math.max(0, (at - window.from) / width));
}

/** The edge of a bin that is nearest to a share of the window. */
export function edgeAt(share: number, window: Range, binMs: number): number {
  const at = window.from + Math.min(1, Math.max(0, share)) * (window.to - window.from);
  return onEdge(at, window, binMs);
}

export function onEdge(at: number, window: Range, binMs: number): number {
  const edge = window.from + Math.round((at - window.from) / binMs) * binMs;
  return Math.min(window.to, Math.max(window.from, edge));
}

/** One edge moved by bins; it does not come closer than one bin to the other. */
export function moveEdge(range: Range, edge: "from" | "to", bins: number, window: Range, binMs: number): Range {
  const moved = onEdge(range[edge] + bins * binMs, window, binMs);
  if (edge === "from") return { from: Math.min(moved, range.to - binMs), to: range.to };
  return { from: range.from, to: Math.max(moved, range.from + binMs) };
}

export type Bin = Schemas["HistogramBin"];

/** From the foot up: failures are compared best where the bars begin. */
export const LAYERS = ["failed", "cancelled", "running", "pending", "success"] as const;
export type Layer = (typeof LAYERS)[number];

export interface Bar {
  bin: number;
  layer: Layer;
  y: number;
  height: number;
}

const VISIBLE_PX = 1.2;

/** The bars of a histogram `height` high. What is there is seen: a layer has at least a pixel. */
export function barsOf(bins: Bin[], height: number): Bar[] {
  const top = Math.max(1, ...bins.map((bin) => LAYERS.reduce((sum, layer) => sum + bin[layer], 0)));
  const bars: Bar[] = [];
  bins.forEach((bin, n) => {
    let y = height;
    for (const layer of LAYERS) {
      if (bin[layer] === 0) continue;
      const h = Math.max(VISIBLE_PX, (bin[layer] / top) * height);
      y = Math.max(0, y - h);
      bars.push({ bin: n, layer, y, height: h });
    }
  });
  return bars;
}

const HOUR_MS = 3_600_000;
const STEPS_MS = [1, 2, 3, 6, 12, 24, 48, 96, 168].map((hours) => hours * HOUR_MS);

/** Moments for the axis: whole hours of the viewer's zone, about `most` of them, none under the word "now". */
export function ticksOf(window: Range, most = 8): number[] {
  const width = window.to - window.from;
  const step = STEPS_MS.find((ms) => width / ms <= most) ?? (STEPS_MS.at(-1) as number);
  const zone = new Date(window.from).getTimezoneOffset() * 60_000;
  const ticks: number[] = [];
  for (let at = Math.ceil((window.from - zone) / step) * step + zone; at < window.to - width * 0.03; at += step)
    if (at > window.from + width * 0.03) ticks.push(at);
  return ticks;
}

const DAY_S = 86_400;
/** How far back the histogram reaches. */
const REACHES = [
  { since: "24h", seconds: DAY_S, words: "24 h" },
  { since: "3d", seconds: 3 * DAY_S, words: "3 d" },
  { since: "7d", seconds: 7 * DAY_S, words: "7 d" },
  { since: "30d", seconds: 30 * DAY_S, words: "30 d" },
];

/** The shortest reach that shows all of what the query asks for. */
export function reachFor(text: string, now: number): (typeof REACHES)[number] {
  const day = { from: now - DAY_S * 1000, to: now };
  const from = rangeOf(text, day, now)?.from ?? day.from;
  // A quarter of an hour of grace: the first bin begins before the window does.
  const back = (now - from) / 1000 - 900;
  return REACHES.find((reach) => back <= reach.seconds) ?? (REACHES.at(-1) as (typeof REACHES)[number]);
}
