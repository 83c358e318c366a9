/**
 * Times in the viewer's zone: 14:11:58 today, Wed 21 Oct 16:40 before, with the year when it is another one.
 *
 * Formatted by hand: the first `Intl.DateTimeFormat` takes 60 milliseconds to create, before a page shows anything.
 */
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export type Moment = string | number | Date;

export function ms(at: Moment): number {
  return at instanceof Date ? at.getTime() : typeof at === "number" ? at : Date.parse(at);
}

export function clock(at: Moment): string {
  return `${clockMinutes(at)}:${digits(new Date(ms(at)).getSeconds())}`;
}

export function clockMinutes(at: Moment): string {
  const then = new Date(ms(at));
  return `${digits(then.getHours())}:${digits(then.getMinutes())}`;
}

/** 14:12:08.118, for logs. */
export function clockMillis(at: Moment): string {
  return `${clock(at)}.${digits(new Date(ms(at)).getMilliseconds(), 3)}`;
}

export function day(at: Moment): string {
  const then = new Date(ms(at));
  return `${DAYS[then.getDay()]} ${dayOfMonth(then)}`;
}

export function time(at: Moment | null | undefined, now: Moment = Date.now()): string {
  if (at === null || at === undefined) return "–";
  const then = new Date(ms(at));
  const today = new Date(ms(now));
  if (then.toDateString() === today.toDateString()) return clock(then);
  if (then.getFullYear() === today.getFullYear()) return `${day(then)} ${clockMinutes(then)}`;
  return `${dayOfMonth(then)} ${then.getFullYear()} ${clockMinutes(then)}`;
}

/** For a tooltip: date, offset and UTC. */
export function wholeTime(at: Moment | null | undefined): string {
  if (at === null || at === undefined) return "";
  const then = new Date(ms(at));
  return `${day(then)} ${then.getFullYear()} ${clock(then)} ${utcOffset(then)} · ${then.toISOString()}`;
}

/** How far the viewer's zone is from UTC at that time: UTC+1, UTC−3:30. */
export function utcOffset(at: Moment): string {
  const east = -new Date(ms(at)).getTimezoneOffset();
  if (east === 0) return "UTC";
  const [hours, minutes] = [Math.floor(Math.abs(east) / 60), Math.abs(east) % 60];
  return `UTC${east < 0 ? "−" : "+"}${hours}${minutes ? `:${digits(minutes)}` : ""}`;
}

export function secondsBetween(from: Moment, to: Moment): number {
  return (ms(to) - ms(from)) / 1000;
}

function dayOfMonth(then: Date): string {
  return `${then.getDate()} ${MONTHS[then.getMonth()]}`;
}

function digits(n: number, length = 2): string {
  return String(n).padStart(length, "0");
}
