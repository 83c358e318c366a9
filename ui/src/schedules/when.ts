/** When a schedule fires, in words, and what changes of the clocks do to it. */
import { cronWords, firesOn, readCron } from "./cron";
import { type ClockChange, clockChanges, clockText, dayText, gapText, localMs } from "./zones";

export interface Spec {
  cron?: string | string[];
  every?: string | number;
  anchor?: string;
  at?: string | string[];
  tz?: string;
  calendars?: string[];
  exclude?: string[];
  start?: string;
  end?: string;
  jitter?: string | number;
  overlap?: string;
  missed?: string;
  window?: string | number;
}

const DAY = 86_400_000;
/** Clock changes further away than this are not announced. */
const AHEAD_DAYS = 370;
const UNITS: Record<string, [string, number]> = {
  d: ["day", 86_400],
  h: ["hour", 3600],
  m: ["minute", 60],
  s: ["second", 1],
};

export function several(value: string | string[] | undefined): string[] {
  return value === undefined ? [] : Array.isArray(value) ? value : [value];
}

/** "every 15 minutes" of "15m"; what is not one unit stays as it is written. */
export function everyWords(every: string | number): string {
  if (typeof every === "number") return `every ${gapText(every * 1000)}`;
  const match = /^(\d+)([dhms])$/.exec(every);
  if (!match) return `every ${every}`;
  const [word] = UNITS[match[2] as string] as [string, number];
  return match[1] === "1" ? `every ${word}` : `every ${match[1]} ${word}s`;
}

/** In words, and as it is written where that is something else. */
export function whenWords(spec: Spec, now = Date.now()): { words: string; written: string } {
  const crons = several(spec.cron);
  const moments = several(spec.at);
  const zone = spec.tz ?? "UTC";
  const parts = crons.map((c) => ({ words: cronWords(c) ?? c, written: c }));
  if (spec.every !== undefined) parts.push({ words: everyWords(spec.every), written: `@every ${spec.every}` });
  if (moments.length === 1) {
    const at = Date.parse(moments[0] as string);
    parts.push({ words: `once, ${dayText(zone, at, now)} ${clockText(zone, at)}`, written: "" });
  } else if (moments.length > 1) parts.push({ words: `at ${moments.length} moments`, written: "" });
  const words = parts.map((p) => p.words).join("; ");
  const written = parts
    .map((p) => p.written)
    .filter((text) => text && text !== words)
    .join("  ");
  return { words, written };
}

/** What the next clock changes mean for a schedule, as sentences. */
export function clockNotes(spec: Spec, now: number): string[] {
  const zone = spec.tz ?? "UTC";
  const crons = several(spec.cron);
  if (crons.length === 0) return [];
  const notes: string[] = [];
  for (const change of clockChanges(zone, now, now + AHEAD_DAYS * DAY)) {
    for (const text of crons) {
      const note = noteOf(text, zone, change, now);
      if (note && !notes.includes(note)) notes.push(note);
    }
  }
  return notes.slice(0, 3);
}

function noteOf(text: string, zone: string, change: ClockChange, now: number): string | null {
  const cron = readCron(text);
  if (!cron) return null;
  const isBack = change.after < change.before;
  // The wall-clock times that come twice, or never.
  const low = change.at + Math.min(change.before, change.after);
  const high = change.at + Math.max(change.before, change.after);
  const day = dayText(zone, change.at, now);
  if (!cron.fixed) {
    if (!isBack || !matches(cron, low, high)) return null;
    return `On ${day} clocks go back and the hour from ${clockOf(low)} comes twice: it fires in both.`;
  }
  const hit = firstHit(cron, low, high);
  if (hit === null) return null;
  if (!isBack) return `On ${day} there is no ${clockOf(hit)}: it fires at ${clockOf(high)}.`;
  const after = everyDay(cron) ? `, so the day after is ${gapText(DAY + high - low)} later` : "";
  return `On ${day} clocks go back and ${clockOf(hit)} happens twice. The schedule fires once, at the first${after}.`;
}

function everyDay(cron: NonNullable<ReturnType<typeof readCron>>): boolean {
  const { day, month, weekday } = cron.written;
  return day === "*" && month === "*" && weekday === "*" && cron.hours.length === 1 && cron.minutes.length === 1;
}

function firstHit(cron: NonNullable<ReturnType<typeof readCron>>, low: number, high: number): number | null {
  for (let local = low; local < high; local += 60_000) {
    const at = new Date(local);
    if (!cron.hours.includes(at.getUTCHours()) || !cron.minutes.includes(at.getUTCMinutes())) continue;
    if (firesOn(cron, at.getUTCFullYear(), at.getUTCMonth() + 1, at.getUTCDate())) return local;
  }
  return null;
}

function matches(cron: NonNullable<ReturnType<typeof readCron>>, low: number, high: number): boolean {
  return firstHit(cron, low, high) !== null;
}

function clockOf(local: number): string {
  return new Date(local).toISOString().slice(11, 16);
}

export interface NextFire {
  at: number;
  local: string;
  offset: string;
  utc: string;
  gap: number | null;
  /** "first of two" for a wall clock that comes again, "moved" for one that the clocks skipped. */
  note: string;
  /** The clocks changed between this fire and the one before, or it is in a repeated hour. */
  odd: boolean;
}

/** Fires to come with their distance from the one before; `before` is the last one that was. */
export function nextFires(
  zone: string,
  times: number[],
  before: number | null,
  now: number,
  offset: Offset,
): NextFire[] {
  return times.map((at, n) => {
    const previous = n === 0 ? before : (times[n - 1] as number);
    const shift = previous === null ? 0 : localMs(zone, at) - at - (localMs(zone, previous) - previous);
    const note = repeats(zone, at) ? "first of two" : "";
    return {
      at,
      local: `${dayText(zone, at, now)} ${clockText(zone, at)}`,
      offset: offset(zone, at),
      utc: new Date(at).toISOString().slice(11, new Date(at).getUTCSeconds() === 0 ? 16 : 19),
      gap: previous === null ? null : at - previous,
      note,
      odd: shift !== 0 || note !== "",
    };
  });
}

type Offset = (zone: string, at: number) => string;

/** Whether the same wall clock comes again within three hours. */
function repeats(zone: string, at: number): boolean {
  const change = clockChanges(zone, at, at + 3 * 3_600_000).find((c) => c.after < c.before);
  return change !== undefined && localMs(zone, at) >= change.at + change.after;
}
