/** The days of a calendar in words: "sat, sun; 25 Dec each year; 3 dates; 1 range". */

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const NAMED = 3;

export function calendarWords(spec: unknown): string {
  const s = (spec ?? {}) as {
    dates?: string[];
    yearly?: string[];
    weekdays?: string[];
    ranges?: string[][];
    not?: unknown;
  };
  const parts: string[] = [];
  if (s.weekdays?.length) parts.push(s.weekdays.join(", "));
  if (s.yearly?.length) parts.push(`${some(s.yearly.map(monthDay), "days")} each year`);
  if (s.dates?.length) parts.push(some(s.dates, "dates"));
  if (s.ranges?.length)
    parts.push(
      some(
        s.ranges.map(([from, to]) => `${from} to ${to}`),
        "ranges",
      ),
    );
  if (s.not) parts.push(`${parts.length > 0 ? "without" : "all but"} ${calendarWords(s.not)}`);
  return parts.join("; ") || "no day";
}

function some(names: string[], many: string): string {
  return names.length <= NAMED ? names.join(", ") : `${names.length} ${many}`;
}

/** "12-25" is 25 Dec. */
function monthDay(text: string): string {
  const [month, day] = text.split("-").map(Number);
  return month && day && MONTHS[month - 1] ? `${day} ${MONTHS[month - 1]}` : text;
}
