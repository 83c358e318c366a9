/** What a task says about its progress, where it can be drawn: {"done": 3, "total": 8}, {"progress": 0.4}, 0.4. */
import { count } from "../../format/numbers";
import { brief } from "../../parts/Payload";

const DONE = ["done", "current", "completed", "processed", "rows", "n"];
const TOTAL = ["total", "of", "count", "max"];
const PART = ["progress", "fraction", "ratio"];
const PERCENT = ["percent", "pct"];

export function progressOf(details: unknown): { part: number; text: string } | null {
  if (typeof details === "number")
    return details >= 0 && details <= 1 ? { part: details, text: `${Math.round(details * 100)} %` } : null;
  if (typeof details !== "object" || details === null || Array.isArray(details)) return null;
  const given = details as Record<string, unknown>;
  const number = (names: string[]) =>
    names.map((n) => given[n]).find((v): v is number => typeof v === "number" && v >= 0);
  const [done, total] = [number(DONE), number(TOTAL)];
  const rest = Object.entries(given)
    .filter(([k, v]) => typeof v === "string" && k !== "unit")
    .map(([, v]) => brief(v, 60));
  const unit = typeof given.unit === "string" ? ` ${given.unit}` : "";
  if (done !== undefined && total)
    return { part: Math.min(done / total, 1), text: [`${count(done)} of ${count(total)}${unit}`, ...rest].join(", ") };
  const part = number(PART) ?? (number(PERCENT) ?? -100) / 100;
  return part >= 0 && part <= 1 ? { part, text: [`${Math.round(part * 100)} %`, ...rest].join(", ") } : null;
}
