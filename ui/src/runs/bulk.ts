/** Bulk acts: which runs they are about, and how they are said. */
import { plural } from "../format/numbers";
import { isPureQuery, type RunsRequest } from "./chips";
import type { BulkAction, BulkJob } from "./data";

/** Runs that can be picked by hand: as many terms as a query may have. */
export const PICKED_MAX = 100;

export interface Selection {
  /** All that match, also those that are not loaded. */
  all: boolean;
  ids: ReadonlySet<string>;
}

export const NOTHING_SELECTED: Selection = { all: false, ids: new Set() };

export function isEmpty(selection: Selection): boolean {
  return !selection.all && selection.ids.size === 0;
}

/** The query of a bulk job over the selection; null when a job cannot say it. */
export function queryOf(selection: Selection, request: RunsRequest): string | null {
  if (selection.all) return isPureQuery(request) ? request.query.trim() : null;
  return selection.ids.size <= PICKED_MAX ? `id in (${[...selection.ids].join(", ")})` : null;
}

/** One row more or less. From "all" a row that is taken away leaves the loaded ones, as many as can be picked. */
export function pick(selection: Selection, id: string, on: boolean, loaded: readonly string[]): Selection {
  const ids = new Set(selection.all ? loaded.slice(0, PICKED_MAX) : selection.ids);
  if (on && ids.size < PICKED_MAX) ids.add(id);
  else if (!on) ids.delete(id);
  return { all: false, ids };
}

/** All rows from one to the other, in the order of the list. */
export function pickRange(selection: Selection, from: string, to: string, loaded: readonly string[]): Selection {
  const [a, b] = [loaded.indexOf(from), loaded.indexOf(to)].sort((x, y) => x - y) as [number, number];
  if (a < 0) return pick(selection, to, true, loaded);
  const ids = new Set(selection.all ? [] : selection.ids);
  for (const id of loaded.slice(a, b + 1)) if (ids.size < PICKED_MAX) ids.add(id);
  return { all: false, ids };
}

interface Words {
  verb: string;
  doing: string;
  /** What will happen, in one sentence. */
  effect: string;
  danger: boolean;
  reason: boolean;
}

export const ACTIONS: Record<BulkAction, Words> = {
  retry: {
    verb: "Retry",
    doing: "Retrying",
    effect: "Failed runs go on from their failed tasks; work that is done is kept. Runs that did not fail are skipped.",
    danger: false,
    reason: false,
  },
  signal: {
    verb: "Signal",
    doing: "Signalling",
    effect: "Each active run receives the signal once. Runs that have ended are skipped.",
    danger: false,
    reason: false,
  },
  cancel: {
    verb: "Cancel",
    doing: "Cancelling",
    effect: "Active runs are asked to stop: their code may clean up and undo. Runs that have ended are skipped.",
    danger: true,
    reason: true,
  },
  terminate: {
    verb: "Terminate",
    doing: "Terminating",
    effect: "Active runs end at once, without cleaning up. Runs that have ended are skipped.",
    danger: true,
    reason: true,
  },
  pause: {
    verb: "Pause",
    doing: "Pausing",
    effect: "Active runs start no further task until they are resumed. Tasks at work finish.",
    danger: false,
    reason: true,
  },
  resume: {
    verb: "Resume",
    doing: "Resuming",
    effect: "Paused and stuck runs go on. The others are skipped.",
    danger: false,
    reason: false,
  },
  delete: {
    verb: "Delete",
    doing: "Deleting",
    effect:
      "Runs that have ended are deleted with their history, logs and results. It cannot be undone. Active runs are skipped.",
    danger: true,
    reason: false,
  },
};

export function isDone(job: BulkJob): boolean {
  return job.status !== "pending" && job.status !== "running";
}

export function handled(job: BulkJob): number {
  return job.done + job.skipped + job.failed;
}

/** "Cancelling 2,318 runs", "Cancelled…" is not claimed: a run may still be stopping. */
export function jobTitle(job: BulkJob): string {
  const words = ACTIONS[job.action];
  if (job.status === "pending") return `Finding runs to ${words.verb.toLowerCase()}`;
  if (job.status === "running") return `${words.doing} ${plural(job.matched, "run")}`;
  return `${words.verb} ${plural(job.matched, "run")}`;
}
