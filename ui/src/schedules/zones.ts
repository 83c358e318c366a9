/** Time zones by `Intl`: offsets, clock changes, and the real length of days. Moments are Unix milliseconds. */

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const formats = new Map<string, Intl.DateTimeFormat>();

function format(zone: string): Intl.DateTimeFormat {
  let found = formats.get(zone);
  if (!found) {
    found = new Intl.DateTimeFormat("en-GB", {
      timeZone: zone,
      hourCycle: "h23",
      year: "numeric",
      month: "numeric",
      day: "numeric",
      hour: "numeric",
      minute: "numeric",
      second: "numeric",
    });
    formats.set(zone, found);
  }
  return found;
}

/** A zone that the browser does not know is shown as UTC. */
export function knownZone(zone: string): string {
  try {
    format(zone);
    return zone;
  } catch {
    return "UTC";
  }
}

/** The wall clock at a moment, as if it were UTC: a number to calculate with. */
export function localMs(zone: string, at: number): number {
  const part: Record<string, number> = {};
  for (const { type, value } of format(zone).formatToParts(at)) part[type] = Number(value);
  const local = Date.UTC(
    part.year ?? 1970,
    (part.month ?? 1) - 1,
    part.day ?? 1,
    part.hour ?? 0,
    part.minute ?? 0,
    part.second ?? 0,
  );
  return local + (((at % 1000) + 1000) % 1000);
}

/** How far the zone is ahead of UTC. */
export function offsetMs(zone: string, at: number): number {
  return localMs(zone, at) - at;
}

export interface ClockChange {
  at: number;
  before: number;
  after: number;
}

/** Moments at which the clocks of a zone change, from `from` and before `to`. Offsets are compared once a day. */
export function clockChanges(zone: string, from: number, to: number): ClockChange[] {
  const out: ClockChange[] = [];
  let before = offsetMs(zone, from);
  for (let low = from; low < to; low += DAY) {
    const high = Math.min(low + DAY, to);
    const after = offsetMs(zone, high);
    if (after === before) continue;
    out.push({ at: changeBetween(zone, low, high, before), before, after });
    before = after;
  }
  return out;
}

function changeBetween(zone: string, from: number, to: number, before: number): number {
  let low = from;
  let high = to;
  while (high - low > 1000) {
    const middle = Math.floor((low + high) / 2000) * 1000;
    if (middle <= low) break;
    if (offsetMs(zone, middle) === before) low = middle;
    else high = middle;
  }
  return Math.ceil(high / 1000) * 1000;
}

/** The moment of a wall clock: the first of two, and the first after a gap that swallowed it. */
export function momentOf(zone: string, local: number): number {
  const early = local - offsetMs(zone, local - DAY);
  if (localMs(zone, early) === local) return early;
  const late = local - offsetMs(zone, local + DAY);
  if (localMs(zone, late) === local) return late;
  return clockChanges(zone, local - DAY, local + DAY).find((c) => c.after > c.before)?.at ?? late;
}

export interface ZoneDay {
  /** 2026-10-25 */
  key: string;
  start: number;
  end: number;
  hours: number;
  /** The part of the day whose wall clock comes for the second time. */
  again: { from: number; to: number } | null;
  /** Where the wall clock leaps forward, and over how much. */
  leap: { at: number; hours: number } | null;
}

function dayAt(zone: string, midnight: number): ZoneDay {
  const start = momentOf(zone, midnight);
  const end = momentOf(zone, midnight + DAY);
  const change = clockChanges(zone, start, end)[0];
  const back = change && change.after < change.before;
  return {
    key: new Date(midnight).toISOString().slice(0, 10),
    start,
    end,
    hours: (end - start) / HOUR,
    again: back ? { from: change.at, to: Math.min(end, change.at + change.before - change.after) } : null,
    leap: change && !back ? { at: change.at, hours: (change.after - change.before) / HOUR } : null,
  };
}

export function dayOf(zone: string, at: number): ZoneDay {
  return dayAt(zone, Math.floor(localMs(zone, at) / DAY) * DAY);
}

/** `count` days in a row, beginning `before` days before the day of a moment. */
export function daysAround(zone: string, at: number, before: number, count: number): ZoneDay[] {
  const today = Math.floor(localMs(zone, at) / DAY) * DAY;
  return Array.from({ length: count }, (_, n) => dayAt(zone, today + (n - before) * DAY));
}

/** +02:00 */
export function offsetText(zone: string, at: number): string {
  const minutes = Math.round(offsetMs(zone, at) / 60_000);
  const size = Math.abs(minutes);
  return `${minutes < 0 ? "−" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** Sun 25 Oct; with the year when it is not the year of `now`. */
export function dayText(zone: string, at: number, now = at): string {
  const local = new Date(localMs(zone, at));
  const text = `${WEEKDAYS[local.getUTCDay()]} ${local.getUTCDate()} ${MONTHS[local.getUTCMonth()]}`;
  const year = local.getUTCFullYear();
  return year === new Date(localMs(zone, now)).getUTCFullYear() ? text : `${text} ${year}`;
}

/** 02:30, or 02:30:15 where it has seconds. */
export function clockText(zone: string, at: number): string {
  const text = new Date(localMs(zone, at)).toISOString();
  return text.slice(17, 19) === "00" ? text.slice(11, 16) : text.slice(11, 19);
}

/** 24 h, 25 h, 15 m, 30 s, 7 d: a gap between two fires, exact where it is whole. */
export function gapText(ms: number): string {
  const seconds = Math.round(ms / 1000);
  if (seconds >= 2 * 86_400 && seconds % 86_400 === 0) return `${seconds / 86_400} d`;
  const parts: string[] = [];
  let rest = seconds;
  for (const [unit, size] of [
    ["h", 3600],
    ["m", 60],
    ["s", 1],
  ] as const) {
    const n = Math.floor(rest / size);
    if (n > 0 && parts.length < 2) parts.push(`${n} ${unit}`);
    rest -= n * size;
  }
  return parts.join(" ") || "0 s";
}

function two(n: number): string {
  return String(n).padStart(2, "0");
}
