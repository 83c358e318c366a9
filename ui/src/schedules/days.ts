/** Which days a schedule is drawn on, and where its fires are within them. */
import { dayOf, daysAround, type ZoneDay } from "./zones";

const DAY = 86_400_000;
/** More fires in a day than this are drawn as a band. */
export const MARKS_MAX = 48;
const DAYS_BEFORE = 2;
const DAYS_SHOWN = 7;

/** A week around now; for a rare schedule the days on which it fires, and today. */
export function shownDays(zone: string, now: number, past: number[], next: number[]): ZoneDay[] {
  const soon = next[0] === undefined || next[0] - now < (DAYS_SHOWN - DAYS_BEFORE - 1) * DAY;
  if (soon) return daysAround(zone, now, DAYS_BEFORE, DAYS_SHOWN);
  const found = new Map<string, ZoneDay>();
  const recent = [...past].sort((a, b) => a - b).slice(-DAYS_BEFORE);
  for (const at of [...recent, now, ...next]) {
    const day = dayOf(zone, at);
    found.set(day.key, day);
    if (found.size === DAYS_SHOWN) break;
  }
  return [...found.values()].sort((a, b) => a.start - b.start);
}

/** Where a moment is in its day, from 0 to 1. */
export function placeIn(day: ZoneDay, at: number): number {
  return (at - day.start) / (day.end - day.start);
}

export function within(day: ZoneDay, times: number[]): number[] {
  return times.filter((at) => at >= day.start && at < day.end);
}

/** Moments that show the wall clock of a fire once more, at which nothing fires. */
export function notAgain(day: ZoneDay, times: number[]): number[] {
  const again = day.again;
  if (!again) return [];
  const shift = again.to - again.from;
  return within(day, times)
    .filter((at) => at >= again.from - shift && at < again.from && !times.includes(at + shift))
    .map((at) => at + shift);
}

/** Whether there are too many fires to draw each of them. */
export function isDense(next: number[]): boolean {
  return next.length > MARKS_MAX && (next[MARKS_MAX] as number) - (next[0] as number) < DAY;
}
