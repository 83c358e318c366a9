/** Lines of a run's logs in the order of their times, each once, at most so many; and whether the view follows the end. */
import { ms } from "../format/times";
import type { LogEntry } from "./types";

export type Line = LogEntry & { place?: string };
export const LINES_MAX = 20_000;

/** The same line of two answers has the same key. A page has no `place`; then the line itself tells. */
export function lineKey(line: Line): string {
  return `${line.at}|${line.seq}|${line.attempt}|${line.stream}|${line.text.length}|${line.text.slice(0, 80)}`;
}

export interface Buffer {
  lines: Line[];
  keys: Map<string, number>;
  /** Lines that were let go of at the beginning. */
  dropped: number;
}

export const EMPTY: Buffer = { lines: [], keys: new Map(), dropped: 0 };

/** With more lines. Those of a page are counted by key, so that two equal lines of one moment stay two. */
export function add(buffer: Buffer, more: Line[], most = LINES_MAX): Buffer {
  const batch = new Map<string, number>();
  const fresh = more.filter((line) => {
    const key = lineKey(line);
    const n = (batch.get(key) ?? 0) + 1;
    batch.set(key, n);
    return n > (buffer.keys.get(key) ?? 0);
  });
  if (fresh.length === 0) return buffer;
  const keys = new Map(buffer.keys);
  for (const line of fresh) keys.set(lineKey(line), (keys.get(lineKey(line)) ?? 0) + 1);
  const lines = merge(buffer.lines, fresh.sort(byTime));
  const over = Math.max(lines.length - most, 0);
  for (const line of lines.slice(0, over)) {
    const key = lineKey(line);
    const left = (keys.get(key) ?? 1) - 1;
    if (left > 0) keys.set(key, left);
    else keys.delete(key);
  }
  return { lines: over > 0 ? lines.slice(over) : lines, keys, dropped: buffer.dropped + over };
}

function byTime(a: Line, b: Line): number {
  return ms(a.at) - ms(b.at) || (a.at < b.at ? -1 : a.at > b.at ? 1 : 0);
}

/** Both are in order; most often the second comes after the first. */
function merge(a: Line[], b: Line[]): Line[] {
  const last = a.at(-1);
  if (!last || byTime(last, b[0] as Line) <= 0) return [...a, ...b];
  return [...a, ...b].sort(byTime);
}

export const LEVELS = ["debug", "info", "warning", "error"] as const;
export type Level = (typeof LEVELS)[number];

export function levelOf(line: Line): Level {
  const word = line.level.toLowerCase();
  if (word.startsWith("warn")) return "warning";
  if (word === "error" || word === "critical" || word === "fatal") return "error";
  if (word === "debug" || word === "trace" || word === "notset") return "debug";
  return line.stream === "stderr" && !word ? "warning" : "info";
}

export function filtered(lines: Line[], least: Level, seq: number | null, tasks: ReadonlySet<number> | null): Line[] {
  const from = LEVELS.indexOf(least);
  if (from === 0 && seq === null && tasks === null) return lines;
  return lines.filter((line) => {
    if (LEVELS.indexOf(levelOf(line)) < from) return false;
    if (seq !== null) return line.seq === seq;
    return tasks === null || tasks.has(line.seq);
  });
}

/** Following stops when a person scrolls up, and goes on when the end is reached again. */
export function follows(
  before: boolean,
  scroll: { top: number; height: number; view: number },
  lastTop: number,
): boolean {
  const atEnd = scroll.height - scroll.top - scroll.view < 24;
  if (atEnd) return true;
  return before && scroll.top >= lastTop;
}
