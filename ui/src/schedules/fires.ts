/** Past fires of a schedule: what became of them, how long they took, how late they were. */
import type { Schemas } from "../api/client";
import { duration } from "../format/durations";
import type { StatusWord } from "../parts/icons";

export type Fire = Schemas["ScheduleFire"];

/** The status of its run; skipped or missed where there was none. */
export function outcomeOf(fire: Fire): StatusWord | "missed" | "gone" {
  if (fire.outcome === "skipped") return "skipped";
  if (fire.outcome === "missed") return "missed";
  return fire.status ?? "gone";
}

export function outcomeWord(outcome: ReturnType<typeof outcomeOf>): string {
  if (outcome === "skipped") return "skipped, an earlier run was active";
  return outcome === "gone" ? "its run is no longer stored" : outcome;
}

/** "20 fires: 18 success, 2 failed", most frequent first. */
export function outcomesText(fires: Fire[]): string {
  if (fires.length === 0) return "no fires yet";
  const counts = new Map<string, number>();
  for (const fire of fires) {
    const word = outcomeOf(fire);
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const parts = [...counts].sort((a, b) => b[1] - a[1]).map(([word, n]) => `${n} ${word}`);
  return `${fires.length} ${fires.length === 1 ? "fire" : "fires"}: ${parts.join(", ")}`;
}

export function median(values: number[]): number | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)] as number;
}

/** Seconds after its nominal time; only for what the clock started. */
export function lateness(fire: Fire): number | null {
  if (fire.how !== "fired" || fire.outcome !== "started") return null;
  return Math.max(0, (Date.parse(fire.at) - Date.parse(fire.nominal_at)) / 1000);
}

/** "29 success, 1 failed. p50 46 s. Started 48 ms late at the median, never missed." */
export function summary(fires: Fire[], durations: Map<string, number>): string {
  if (fires.length === 0) return "";
  const counts = outcomesText(fires).replace(/^.*?: /, "");
  const took = median(fires.flatMap((f) => (f.run_id ? (durations.get(f.run_id) ?? []) : [])));
  const late = median(fires.flatMap((f) => lateness(f) ?? []));
  const missed = fires.filter((f) => f.outcome === "missed").length;
  const out = [`${counts}.`];
  if (took !== null) out.push(`p50 ${duration(took)}.`);
  if (late !== null)
    out.push(`Started ${duration(late)} late at the median, ${missed ? `missed ${missed}` : "never missed"}.`);
  return out.join(" ");
}
