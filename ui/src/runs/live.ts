/**
 * Live changes of a list that does not move under the pointer: rows change in place, new runs are gathered until they are asked for, and
 * a row that no longer matches stays, greyed, until the next query.
 */
import type { RunSummary } from "./matching";

export interface LiveRuns {
  /** The latest state of runs in the list, by id. */
  changed: ReadonlyMap<string, RunSummary>;
  /** Of these, the ones that were read from the list again, whole; the stream's know neither wait reasons nor attempts. */
  read: ReadonlySet<string>;
  /** Runs in the list that do not match any more. */
  gone: ReadonlySet<string>;
  /** New runs that match, newest first, not in the list yet. */
  gathered: readonly RunSummary[];
  /** New runs that the person asked to see, newest first. */
  shown: readonly RunSummary[];
}

export const NOTHING_LIVE: LiveRuns = { changed: new Map(), read: new Set(), gone: new Set(), gathered: [], shown: [] };
/** With more new runs than this the list is read again instead. */
export const GATHERED_MAX = 200;

export interface Listed {
  /** The runs of the pages, newest first. */
  runs: readonly RunSummary[];
  /** Whether the run matches the query; null when the row does not tell. */
  matches: (run: RunSummary) => boolean | null;
}

export function receive(live: LiveRuns, batch: readonly RunSummary[], listed: Listed): LiveRuns {
  const known = new Set([...listed.runs, ...live.shown].map((run) => run.id));
  const newest = listed.runs[0]?.id ?? "";
  const [changed, read, gone] = [new Map(live.changed), new Set(live.read), new Set(live.gone)];
  const gathered = new Map(live.gathered.map((run) => [run.id, run]));
  for (const run of batch) {
    const verdict = listed.matches(run);
    if (known.has(run.id)) {
      const before = read.has(run.id) ? changed.get(run.id) : undefined;
      changed.set(run.id, before ? merged(before, run) : run);
      if (verdict === false) gone.add(run.id);
      else if (verdict === true) gone.delete(run.id);
    } else if (verdict === false) gathered.delete(run.id);
    // Ids begin with the time of creation: an older run belongs to a page that is not loaded.
    else if (verdict === true && run.id > newest) gathered.set(run.id, run);
  }
  return { ...live, changed, read, gone, gathered: newestFirst([...gathered.values()]) };
}

/** The gathered runs become rows. */
export function showGathered(live: LiveRuns): LiveRuns {
  const shown = newestFirst([...live.gathered, ...live.shown]);
  return { ...live, shown, gathered: [] };
}

/** Rows read again, for what streams do not carry: wait reasons, pauses, retries. One that is not found was deleted. */
export function refresh(
  live: LiveRuns,
  asked: readonly RunSummary[],
  found: readonly RunSummary[],
  matches: Listed["matches"],
): LiveRuns {
  const [changed, read, gone] = [new Map(live.changed), new Set(live.read), new Set(live.gone)];
  const left = new Set(asked.map((run) => run.id));
  for (const run of found) {
    left.delete(run.id);
    read.add(run.id);
    changed.set(run.id, run);
    const verdict = matches(run);
    if (verdict === false) gone.add(run.id);
    else if (verdict === true) gone.delete(run.id);
  }
  for (const id of left) gone.add(id);
  return { ...live, changed, read, gone };
}

export interface Row {
  run: RunSummary;
  gone: boolean;
  fresh: boolean;
}

/** The rows of the table: new runs that were asked for, then the pages, each run once and as it is now. */
export function rowsOf(pages: readonly (readonly RunSummary[])[], live: LiveRuns): Row[] {
  const rows: Row[] = [];
  const seen = new Set<string>();
  const add = (run: RunSummary, fresh: boolean) => {
    if (seen.has(run.id)) return;
    seen.add(run.id);
    const change = live.changed.get(run.id);
    const now = !change ? run : live.read.has(run.id) ? change : merged(run, change);
    rows.push({ run: now, gone: live.gone.has(run.id), fresh });
  };
  for (const run of live.shown) add(run, true);
  for (const page of pages) for (const run of page) add(run, false);
  return rows;
}

/** A row and what the stream says about it. A message that was late does not undo what the row already says. */
function merged(row: RunSummary, change: RunSummary): RunSummary {
  const isLate = change.epoch < row.epoch || (row.finished_at && !change.finished_at && change.epoch === row.epoch);
  if (isLate) return row;
  const waiting = change.waiting ?? (change.finished_at ? null : row.waiting);
  return { ...change, waiting, attempts: change.attempts ?? row.attempts };
}

function newestFirst(runs: RunSummary[]): RunSummary[] {
  return runs.sort((a, b) => (a.id < b.id ? 1 : a.id > b.id ? -1 : 0));
}
