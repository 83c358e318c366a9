/** The grid of runs and tasks: which rows are shown, and what a cell says. */
import type { GridCell, GridRun } from "./data";

/** Rows up to which all are shown. */
export const ROWS_SHOWN = 14;
export const COLUMNS = 25;

/**
 * The rows to show while the rest is folded: those in which something failed or was retried come before quiet ones,
 * but all keep the order of the workflow.
 */
export function foldedRows(nodes: string[], runs: GridRun[], shown = ROWS_SHOWN): { rows: string[]; hidden: number } {
  if (nodes.length <= shown) return { rows: nodes, hidden: 0 };
  const weight = new Map(nodes.map((node) => [node, notable(node, runs)]));
  const kept = [...nodes].sort((a, b) => (weight.get(b) ?? 0) - (weight.get(a) ?? 0)).slice(0, shown);
  const set = new Set(kept);
  return { rows: nodes.filter((node) => set.has(node)), hidden: nodes.length - shown };
}

function notable(node: string, runs: GridRun[]): number {
  let found = 0;
  for (const run of runs) {
    const cell = run.cells[node];
    if (!cell) continue;
    if (cell.status === "failed" || cell.failed > 0) found += 100;
    else if (cell.status === "running" || cell.status === "cancelled") found += 10;
    else if (cell.attempts > 1) found += 1;
  }
  return found;
}

/** How much of a fan-out has ended, in percent; null where there is no part to show. */
export function doneShare(cell: GridCell): number | null {
  if (cell.status !== "running" || cell.tasks <= 1) return null;
  return Math.round((cell.done / cell.tasks) * 100);
}

/** How long a run took, or has taken by `now`. */
export function took(run: GridRun, now: number): number {
  return run.duration_s ?? Math.max((now - Date.parse(run.created_at)) / 1000, 0);
}

/** Heights of the duration bars in percent of the longest; what ran must be seen. */
export function durationHeights(runs: GridRun[], now: number): number[] {
  const durations = runs.map((run) => took(run, now));
  const longest = Math.max(...durations, 0);
  return durations.map((seconds) => (longest > 0 ? Math.max((seconds / longest) * 100, 5) : 5));
}

export function cellLabel(node: string, when: string, cell: GridCell | undefined): string {
  if (!cell) return `${node}, ${when}: did not run`;
  const parts: string[] = [cell.status];
  if (cell.tasks > 1) parts.push(`${cell.done} of ${cell.tasks} tasks ended`);
  if (cell.failed > 0 && cell.tasks > 1) parts.push(`${cell.failed} failed`);
  if (cell.attempts > 1) parts.push(`${cell.attempts} attempts`);
  return `${node}, ${when}: ${parts.join(", ")}`;
}

/** Labels under the columns: the day where it changes, the time of day when all are of one day, never two that touch. */
export function columnLabels(runs: { created_at: string }[], apart = 3): string[] {
  const dates = runs.map((r) => new Date(r.created_at));
  const oneDay = new Set(dates.map((d) => d.toDateString())).size <= 1;
  const two = (n: number) => String(n).padStart(2, "0");
  const word = (d: Date) => (oneDay ? `${two(d.getHours())}:${two(d.getMinutes())}` : String(d.getDate()));
  const out = dates.map(() => "");
  let next = dates.length - 1;
  for (let n = dates.length - 1; n >= 0; n -= 1) {
    const text = word(dates[n] as Date);
    if (n > next || out.includes(text)) continue;
    out[n] = text;
    next = n - apart;
  }
  return out;
}
