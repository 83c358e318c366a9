/** Times in the viewer's zone: 14:11:58 today, Wed 21 Oct 16:40 before, with the year when it is another one. */
const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minuteFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });
const yearFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const wholeFormat = new Intl.DateTimeFormat("en-GB", {
  weekday: "short",
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
});

export type Moment = string | number | Date;

export function ms(at: Moment): number {
  return at instanceof Date ? at.getTime() : typeof at === "number" ? at : Date.parse(at);
}

export function clock(at: Moment): string {
  return clockFormat.format(ms(at));
}

export function clockMinutes(at: Moment): string {
  return minuteFormat.format(ms(at));
}

/** 14:12:08.118, for logs. */
export function clockMillis(at: Moment): string {
  const t = ms(at);
  return `${clockFormat.format(t)}.${String(Math.floor(((t % 1000) + 1000) % 1000)).padStart(3, "0")}`;
}

export function day(at: Moment): string {
  return dayFormat.format(ms(at)).replace(",", "");
}

export function time(at: Moment | null | undefined, now: Moment = Date.now()): string {
  if (at === null || at === undefined) return "–";
  const then = new Date(ms(at));
  const today = new Date(ms(now));
  if (then.toDateString() === today.toDateString()) return clock(then);
  if (then.getFullYear() === today.getFullYear()) return `${day(then)} ${clockMinutes(then)}`;
  return `${yearFormat.format(then)} ${clockMinutes(then)}`;
}

/** For a tooltip: date, zone and UTC. */
export function wholeTime(at: Moment | null | undefined): string {
  if (at === null || at === undefined) return "";
  const then = new Date(ms(at));
  return `${wholeFormat.format(then).replaceAll(",", "")} · ${then.toISOString()}`;
}

export function secondsBetween(from: Moment, to: Moment): number {
  return (ms(to) - ms(from)) / 1000;
}
