/** The filter of dead letters: it is in the address, and the same for the list and for a retry. */

export const FILTERS = ["workflow", "task", "queue", "q", "since"] as const;
export type FilterName = (typeof FILTERS)[number];
export type Filter = Partial<Record<FilterName, string>>;

export function filterOf(get: (name: string) => string | null): Filter {
  return Object.fromEntries(FILTERS.flatMap((name) => (get(name) ? [[name, get(name) as string]] : [])));
}

export function isEmpty(filter: Filter): boolean {
  return Object.keys(filter).length === 0;
}

/** "of import, with “timeout” in the error" */
export function words(filter: Filter): string {
  const parts: string[] = [];
  if (filter.workflow) parts.push(`of workflow ${filter.workflow}`);
  if (filter.task) parts.push(`of task ${filter.task}`);
  if (filter.queue) parts.push(`in queue ${filter.queue}`);
  if (filter.q) parts.push(`with “${filter.q}” in the error`);
  if (filter.since) parts.push(`of the last ${filter.since}`);
  return parts.join(", ");
}

/** The command that retries the same. */
export function command(filter: Filter): string {
  const options: Record<FilterName, string> = {
    workflow: "--workflow",
    task: "--task",
    queue: "--queue",
    q: "--text",
    since: "--since",
  };
  const given = FILTERS.flatMap((name) => (filter[name] ? [`${options[name]} ${quoted(filter[name] as string)}`] : []));
  return ["perdure dead-letter retry", ...(given.length > 0 ? given : ["--all"])].join(" ");
}

/** The run query that finds at least the same runs, for a job; null where a query cannot ask for it. */
export function runQuery(filter: Filter): string | null {
  if (filter.task || filter.queue || filter.q) return null;
  const parts = ["status = failed"];
  if (filter.workflow) parts.push(`workflow = ${JSON.stringify(filter.workflow)}`);
  if (filter.since) parts.push(`finished >= -${filter.since}`);
  return parts.join(" and ");
}

function quoted(text: string): string {
  return /^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

export interface Progress {
  retried: number;
  refused: { run_id: string; reason: string | null }[];
  isOver: boolean;
}

export const NOTHING: Progress = { retried: 0, refused: [], isOver: false };

export interface Outcome {
  run_id: string;
  outcome: "retried" | "refused" | "would_retry";
  reason: string | null;
}

/** Runs appear once, however many dead letters they have. */
export function add(progress: Progress, outcomes: Outcome[], isOver: boolean): Progress {
  return {
    retried: progress.retried + outcomes.filter((o) => o.outcome !== "refused").length,
    refused: [...progress.refused, ...outcomes.filter((o) => o.outcome === "refused")],
    isOver,
  };
}
