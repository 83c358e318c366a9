/** Cron expressions in words, and which wall-clock times they name. What this does not understand is shown as it is written. */

const ALIASES: Record<string, string> = {
  "@hourly": "0 * * * *",
  "@daily": "0 0 * * *",
  "@midnight": "0 0 * * *",
  "@weekly": "0 0 * * 0",
  "@monthly": "0 0 1 * *",
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
};
const DAY_NAMES = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MONTH_NAMES = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS_LONG = ["Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays"];
const MONTHS_LONG = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];
const TIMES_SHOWN = 4;

export interface Cron {
  seconds: number[];
  minutes: number[];
  hours: number[];
  days: number[];
  months: number[];
  weekdays: number[];
  /** The fields as they are written, without seconds. */
  written: { minute: string; hour: string; day: string; month: string; weekday: string };
  /** It names its hours and minutes, so that each wall-clock time counts once a day. */
  fixed: boolean;
}

export function readCron(text: string): Cron | null {
  const plain = ALIASES[text.trim().toLowerCase()] ?? text.trim();
  const fields = plain.split(/\s+/);
  if (fields.length !== 5 && fields.length !== 6) return null;
  const [second, minute, hour, day, month, weekday] = (fields.length === 6 ? fields : ["0", ...fields]) as [
    string,
    string,
    string,
    string,
    string,
    string,
  ];
  const read = {
    seconds: values(second, 0, 59),
    minutes: values(minute, 0, 59),
    hours: values(hour, 0, 23),
    days: values(day, 1, 31),
    months: values(month, 1, 12, MONTH_NAMES, 1),
    weekdays: values(weekday, 0, 7, DAY_NAMES),
  };
  if (Object.values(read).some((v) => v === null)) return null;
  const known = read as Record<keyof typeof read, number[]>;
  return {
    ...known,
    weekdays: [...new Set(known.weekdays.map((d) => d % 7))].sort((a, b) => a - b),
    written: { minute, hour, day, month, weekday },
    fixed: !minute.startsWith("*") && !hour.startsWith("*"),
  };
}

/** The values of one field; null for what only the server understands, such as `L` or `FRI#2`. */
function values(field: string, low: number, high: number, names: string[] = [], first = 0): number[] | null {
  const out = new Set<number>();
  for (const part of field.split(",")) {
    const match = /^(\*|[A-Za-z]+|\d+)(?:-([A-Za-z]+|\d+))?(?:\/(\d+))?$/.exec(part);
    if (!match) return null;
    const [, from, to, step] = match as unknown as [string, string, string | undefined, string | undefined];
    const begin = from === "*" ? low : number(from, names, first);
    const end = from === "*" ? high : to !== undefined ? number(to, names, first) : step !== undefined ? high : begin;
    if (begin === null || end === null || begin < low || end > high || begin > end || step === "0") return null;
    for (let n = begin; n <= end; n += Number(step ?? 1)) out.add(n);
  }
  return [...out].sort((a, b) => a - b);
}

function number(text: string, names: string[], first: number): number | null {
  if (/^\d+$/.test(text)) return Number(text);
  const at = names.indexOf(text.toUpperCase());
  return at < 0 ? null : at + first;
}

/** Whether an expression fires on a day: as in cron, a day of the month or a day of the week where both are given. */
export function firesOn(cron: Cron, year: number, month: number, day: number): boolean {
  if (!cron.months.includes(month)) return false;
  const weekday = cron.weekdays.includes(new Date(Date.UTC(year, month - 1, day)).getUTCDay());
  const monthday = cron.days.includes(day);
  const { day: days, weekday: weekdays } = cron.written;
  if (days.startsWith("*") || weekdays.startsWith("*")) return monthday && weekday;
  return monthday || weekday;
}

/** "every day at 08:00", "every 15 minutes", "Mondays at 04:00"; null where words would be longer than the expression. */
export function cronWords(text: string): string | null {
  const cron = readCron(text);
  if (cron?.seconds.length !== 1 || cron.seconds[0] !== 0) return null;
  const when = timeWords(cron);
  const days = dayWords(cron);
  if (when === null || days === null) return null;
  if (cron.fixed) return `${days} at ${when}`;
  return days === "every day" ? when : `${when}, ${days}`;
}

function timeWords(cron: Cron): string | null {
  const { minute, hour } = cron.written;
  if (cron.fixed) {
    const times = cron.hours.flatMap((h) => cron.minutes.map((m) => `${two(h)}:${two(m)}`));
    return times.length <= TIMES_SHOWN ? listed(times) : null;
  }
  const everyMinutes = step(minute);
  if (everyMinutes && hour === "*") return everyMinutes === 1 ? "every minute" : `every ${everyMinutes} minutes`;
  const everyHours = step(hour);
  if (everyHours && cron.minutes.length === 1) {
    const past = cron.minutes[0] === 0 ? "" : `, at :${two(cron.minutes[0] as number)}`;
    return everyHours === 1 ? `every hour${past}` : `every ${everyHours} hours${past}`;
  }
  return null;
}

function step(field: string): number | null {
  if (field === "*") return 1;
  const match = /^\*\/(\d+)$/.exec(field);
  return match ? Number(match[1]) : null;
}

function dayWords(cron: Cron): string | null {
  const { day, month, weekday } = cron.written;
  const months = month === "*" ? "" : ` ${listed(cron.months.map((m) => MONTHS_LONG[m - 1] as string))}`;
  if (cron.months.length > TIMES_SHOWN && month !== "*") return null;
  if (day === "*" && weekday === "*") return months ? `every day of${months}` : "every day";
  if (day === "*") {
    const named = weekdayWords(cron.weekdays);
    return months ? `${named} in${months}` : named;
  }
  if (weekday !== "*" || cron.days.length > TIMES_SHOWN) return null;
  return `the ${listed(cron.days.map(ordinal))}${months ? ` of${months}` : ""}`;
}

function weekdayWords(days: number[]): string {
  if (days.join() === "1,2,3,4,5") return "weekdays";
  if (days.join() === "0,6") return "weekends";
  return listed([...days].sort((a, b) => ((a + 6) % 7) - ((b + 6) % 7)).map((d) => DAYS_LONG[d] as string));
}

function ordinal(n: number): string {
  const last = n % 100 >= 11 && n % 100 <= 13 ? 0 : n % 10;
  return `${n}${["th", "st", "nd", "rd"][last] ?? "th"}`;
}

export function listed(words: string[]): string {
  return words.length < 2 ? (words[0] ?? "") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}

function two(n: number): string {
  return String(n).padStart(2, "0");
}
