/** The last runs by task: a failed row or column is seen before it is read. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { duration } from "../format/durations";
import { time } from "../format/times";
import { StatusMark, type StatusWord } from "../parts/icons";
import { Status } from "../parts/Status";
import { Empty, Failed, Skeleton } from "../parts/states";
import { useUrl } from "../shell/url";
import { GRID_RUNS, type GridCell, type GridRun, useGrid } from "./data";
import { COLUMNS, cellLabel, columnLabels, doneShare, durationHeights, foldedRows, took } from "./gridFold";

const KEY: StatusWord[] = ["failed", "running", "skipped", "cancelled"];

export function RunsGrid({ name }: { name: string }) {
  return (
    <section className="card" aria-label={`Last ${GRID_RUNS} runs by task`}>
      <header>
        <h2 className="grow">Last {GRID_RUNS} runs by task</h2>
        <div className="cellkey hide-narrow">
          {KEY.map((status) => (
            <Status key={status} status={status} />
          ))}
          <span className="muted row retried">
            <i />
            retried
          </span>
        </div>
      </header>
      <Body name={name} />
    </section>
  );
}

function Body({ name }: { name: string }) {
  const grid = useGrid(name);
  const url = useUrl();
  if (grid.error && !grid.data) return <Failed error={grid.error} retry={() => void grid.refetch()} />;
  if (!grid.data) return <Skeleton rows={8} height={26} />;
  const { nodes, runs } = grid.data;
  if (runs.length === 0)
    return (
      <Empty title="No run yet" command={`perdure run ${name}`}>
        Each column here is a run and each row one of its tasks. Start one to see how it goes.
      </Empty>
    );
  const all = url.get("rows") === "all";
  const folded = foldedRows(nodes, runs);
  const rows = all ? nodes : folded.rows;
  return (
    <div className="matrix scroll">
      <Matrix rows={rows} runs={runs.slice(-COLUMNS)} />
      {rows.length === 0 && <p className="faint small more-rows">These runs had no tasks.</p>}
      {folded.hidden > 0 && (
        <button type="button" className="link small more-rows" onClick={() => url.set({ rows: all ? null : "all" })}>
          {all ? "Show fewer tasks" : `Show ${folded.hidden} more ${folded.hidden === 1 ? "task" : "tasks"}`}
        </button>
      )}
    </div>
  );
}

function Matrix({ rows, runs }: { rows: string[]; runs: GridRun[] }) {
  const now = Date.now();
  const heights = durationHeights(runs, now);
  const labels = columnLabels(runs);
  const blank = Math.max(COLUMNS - runs.length, 0);
  const padding = (kind: string): ReactNode[] =>
    // biome-ignore lint/suspicious/noArrayIndexKey: columns of nothing
    Array.from({ length: blank }, (_, n) => <span key={`${kind}${n}`} className="blank" aria-hidden="true" />);
  return (
    <div className="mx" role="group" aria-label={`Task outcomes of the last ${runs.length} runs`}>
      <span className="name faint">duration</span>
      {padding("d")}
      {runs.map((run, n) => (
        <Link
          key={run.id}
          to={`/runs/${run.id}` as never}
          className={`durbar ${run.status}`}
          title={runTitle(run, now)}
          aria-label={runTitle(run, now)}
        >
          <i style={{ height: `${heights[n]}%` }} />
        </Link>
      ))}
      {rows.map((node) => (
        <Row key={node} node={node} runs={runs} padding={padding(node)} />
      ))}
      <span />
      {padding("w")}
      {runs.map((run, n) => (
        <span key={run.id} className="when">
          {labels[n]}
        </span>
      ))}
    </div>
  );
}

function Row({ node, runs, padding }: { node: string; runs: GridRun[]; padding: ReactNode[] }) {
  return (
    <>
      <span className="name clip" title={node}>
        {node}
      </span>
      {padding}
      {runs.map((run) => (
        <Cell key={run.id} node={node} run={run} cell={run.cells[node]} />
      ))}
    </>
  );
}

function Cell({ node, run, cell }: { node: string; run: GridRun; cell: GridCell | undefined }) {
  if (!cell) return <span className="cell c-none" title={cellLabel(node, time(run.created_at), cell)} />;
  const share = doneShare(cell);
  const label = cellLabel(node, time(run.created_at), cell);
  return (
    <Link
      to={`/runs/${run.id}?${new URLSearchParams({ task: node })}` as never}
      className={`cell c-${cell.status} ${share === null ? "" : "part"}`}
      style={share === null ? undefined : ({ "--part": `${share}%` } as React.CSSProperties)}
      title={label}
      aria-label={label}
    >
      <StatusMark status={cell.status} />
      {cell.attempts > 1 && <i className="re" />}
    </Link>
  );
}

function runTitle(run: GridRun, now: number): string {
  return `${run.key ?? time(run.created_at)}: ${run.status}, ${duration(took(run, now))}`;
}
