/**
 * The time axis of the timeline: linear pieces, side by side.
 *
 * Times in which nothing was at work are folded to a fixed width. What is expected after now is pressed into the right margin. Positions are
 * parts of the axis, 0 to 1; times are milliseconds.
 */

export interface Piece {
  from: number;
  to: number;
  left: number;
  right: number;
  kind: "work" | "fold" | "future";
}

export interface Scale {
  pieces: Piece[];
  from: number;
  to: number;
  now: number | null;
}

export interface ScaleInput {
  from: number;
  to: number;
  /** Null: the run has ended. */
  now: number | null;
  idle: [number, number][];
  /** Until when work is expected; at most `to` means none is. */
  until: number;
  /** The part that is looked at; null: all of it. */
  window: [number, number] | null;
  unfolded: boolean;
}

const FOLD_WIDTH = 0.11;
const FOLDS_MOST = 0.4;
const FUTURE_WIDTH = 0.18;
/** Room for words behind the last bar. */
const END_MARGIN = 0.09;
const PIECE_LEAST = 0.1;
const WORK_LEAST = 0.002;
const SPAN_LEAST_MS = 1;

export function makeScale(input: ScaleInput): Scale {
  const [from, to] = input.window ?? [input.from, Math.max(input.to, input.from + SPAN_LEAST_MS)];
  const end = Math.max(to, from + SPAN_LEAST_MS);
  const future = input.window === null && input.now !== null && input.until > input.to;
  const right = input.window ? 1 : future ? 1 - FUTURE_WIDTH : 1 - END_MARGIN;
  const folded = split(from, end, input.unfolded ? [] : input.idle);
  const worked = folded.filter((p) => p.kind === "work").reduce((sum, p) => sum + p.to - p.from, 0);
  // A run that only waited has nothing beside which its waits would be long.
  const pieces = worked < (end - from) * WORK_LEAST ? split(from, end, []) : folded;
  place(pieces, right);
  if (input.window === null)
    pieces.push({
      from: end,
      to: future ? input.until : end + (end - from) * END_MARGIN,
      left: right,
      right: 1,
      kind: "future",
    });
  return { pieces, from, to: end, now: input.now };
}

/** Only a fold that is seen whole is folded. */
function split(from: number, to: number, idle: [number, number][]): Piece[] {
  const out: Piece[] = [];
  let at = from;
  for (const [a, b] of idle) {
    if (a < at || b > to || b <= a) continue;
    if (a > at) out.push({ from: at, to: a, left: 0, right: 0, kind: "work" });
    out.push({ from: a, to: b, left: 0, right: 0, kind: "fold" });
    at = b;
  }
  if (at < to || out.length === 0) out.push({ from: at, to, left: 0, right: 0, kind: "work" });
  return out;
}

function place(pieces: Piece[], right: number): void {
  const folds = pieces.filter((p) => p.kind === "fold").length;
  const fold = folds === 0 ? 0 : Math.min(FOLD_WIDTH, FOLDS_MOST / folds) * right;
  const room = right - fold * folds;
  const work = pieces.filter((p) => p.kind === "work");
  const total = work.reduce((sum, p) => sum + p.to - p.from, 0) || 1;
  const shares = work.map((p) => Math.max((p.to - p.from) / total, Math.min(PIECE_LEAST, 1 / work.length)));
  const all = shares.reduce((sum, s) => sum + s, 0) || 1;
  let left = 0;
  let n = 0;
  for (const piece of pieces) {
    piece.left = left;
    left += piece.kind === "fold" ? fold : ((shares[n++] as number) / all) * room;
    piece.right = left;
  }
}

export function x(scale: Scale, t: number): number {
  const pieces = scale.pieces;
  const piece = pieces.find((p) => t <= p.to) ?? (pieces.at(-1) as Piece);
  const span = piece.to - piece.from || 1;
  const at = piece.left + ((t - piece.from) / span) * (piece.right - piece.left);
  return Math.min(Math.max(at, 0), 1);
}

export function timeAt(scale: Scale, at: number): number {
  const pieces = scale.pieces;
  const piece = pieces.find((p) => at <= p.right) ?? (pieces.at(-1) as Piece);
  const width = piece.right - piece.left || 1;
  return piece.from + ((at - piece.left) / width) * (piece.to - piece.from);
}

/** Zoom by a factor about a position of the axis, within the run. Null: all of it. */
export function zoomWindow(scale: Scale, bounds: [number, number], at: number, by: number): [number, number] | null {
  const centre = timeAt(scale, Math.min(at, x(scale, scale.to)));
  const span = (scale.to - scale.from) / by;
  const whole = bounds[1] - bounds[0];
  if (span >= whole) return null;
  const least = Math.min(Math.max(whole / 1e6, 1), whole);
  const width = Math.max(span, least);
  const part = (centre - scale.from) / (scale.to - scale.from || 1);
  return shifted([centre - part * width, centre + (1 - part) * width], bounds);
}

/** Move a window by a part of its width, within the run. */
export function panWindow(window: [number, number], bounds: [number, number], by: number): [number, number] {
  const shift = (window[1] - window[0]) * by;
  return shifted([window[0] + shift, window[1] + shift], bounds);
}

function shifted([a, b]: [number, number], [low, high]: [number, number]): [number, number] {
  if (a < low) return [low, Math.min(low + (b - a), high)];
  if (b > high) return [Math.max(high - (b - a), low), high];
  return [a, b];
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  1,
  2,
  5,
  10,
  20,
  50,
  100,
  200,
  500,
  SECOND,
  2 * SECOND,
  5 * SECOND,
  10 * SECOND,
  15 * SECOND,
  30 * SECOND,
  MINUTE,
  2 * MINUTE,
  5 * MINUTE,
  10 * MINUTE,
  15 * MINUTE,
  30 * MINUTE,
  HOUR,
  2 * HOUR,
  3 * HOUR,
  6 * HOUR,
  12 * HOUR,
  DAY,
  2 * DAY,
  7 * DAY,
  30 * DAY,
];

export interface Tick {
  at: number;
  x: number;
  step: number;
}

/** Round times, `gap` of the axis apart at least, away from folds and from now. `zoneMs` is the viewer's offset from UTC. */
export function ticks(scale: Scale, gap: number, zoneMs: number): Tick[] {
  const out: Tick[] = [];
  const taken = scale.pieces.filter((p) => p.kind === "fold").map((p) => (p.left + p.right) / 2);
  if (scale.now !== null && scale.now <= scale.to + 1) taken.push(x(scale, scale.now));
  for (const piece of scale.pieces) {
    if (piece.kind !== "work") continue;
    const perMs = (piece.right - piece.left) / (piece.to - piece.from || 1);
    const step = STEPS.find((s) => s * perMs >= gap) ?? (STEPS.at(-1) as number);
    const first = Math.ceil((piece.from + zoneMs) / step) * step - zoneMs;
    for (let t = first; t <= piece.to; t += step) {
      const at = x(scale, t);
      if (!taken.some((other) => Math.abs(other - at) < gap * 0.8)) out.push({ at: t, x: at, step });
    }
  }
  return out;
}
