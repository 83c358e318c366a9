/** The columns of the table of runs. Which ones are shown is in the URL. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { duration } from "../format/durations";
import { shortId, shortVersion } from "../format/ids";
import { ms } from "../format/times";
import { brief } from "../parts/Payload";
import { Status, sentenceCase } from "../parts/Status";
import { Time, useNow } from "../parts/Time";
import { isActive, type RunSummary } from "./matching";
import { Why } from "./Why";

export interface RowFacts {
  /** Seconds that 95 of 100 runs of the workflow stay below. */
  p95: (workflow: string) => number | null;
  /** How many versions behind the current one; null when it is not known. */
  behind: (run: RunSummary) => number | null;
}

export interface Column {
  id: string;
  label: string;
  className: string;
  head?: ReactNode;
  cell: (run: RunSummary, facts: RowFacts) => ReactNode;
}

const BASE: Column[] = [
  { id: "status", label: "Status", className: "c-status", cell: (run) => <Status status={run.status} /> },
  { id: "workflow", label: "Workflow", className: "c-flow", cell: (run) => <WorkflowCell run={run} /> },
  { id: "run", label: "Run", className: "c-id mono", cell: (run) => <span title={run.id}>{shortId(run.id)}</span> },
  { id: "why", label: "Waiting on or error", className: "c-why", cell: (run) => <WhyCell run={run} /> },
  { id: "started", label: "Started", className: "c-start num muted", cell: (run) => <Time at={run.created_at} /> },
  {
    id: "duration",
    label: "Duration",
    className: "c-dur",
    head: (
      <>
        Duration <span className="faint">vs p95</span>
      </>
    ),
    cell: (run, facts) => <DurationCell run={run} p95={facts.p95(run.workflow)} />,
  },
  { id: "attempts", label: "Attempts", className: "c-try num", cell: (run) => <AttemptsCell run={run} /> },
  {
    id: "version",
    label: "Version",
    className: "c-ver mono muted",
    cell: (run, facts) => <VersionCell run={run} facts={facts} />,
  },
];

const MORE: Column[] = [
  { id: "key", label: "Key", className: "c-key mono muted", cell: (run) => text(run.key) },
  { id: "finished", label: "Finished", className: "c-start num muted", cell: (run) => <Time at={run.finished_at} /> },
  { id: "parent", label: "Parent", className: "c-id mono", cell: (run) => <ParentCell run={run} /> },
];

export const DEFAULT_COLUMNS = BASE.map((column) => column.id);
const KNOWN = new Map([...BASE, ...MORE].map((column) => [column.id, column]));
const ATTRIBUTE = "attr.";

function text(value: string | null | undefined): ReactNode {
  return value ? <span title={value}>{brief(value, 200)}</span> : <span className="faint">–</span>;
}

/** The column of an id: one of ours, or `attr.NAME`. */
export function columnOf(id: string): Column | null {
  const known = KNOWN.get(id);
  if (known || !id.startsWith(ATTRIBUTE) || id.length > 110) return known ?? null;
  const name = id.slice(ATTRIBUTE.length);
  return {
    id,
    label: name,
    className: "c-attr muted",
    cell: (run) => {
      const value = run.attributes?.[name];
      return value === undefined ? (
        <span className="faint">–</span>
      ) : (
        <span title={brief(value, 500)}>{brief(value)}</span>
      );
    },
  };
}

/** The chosen columns, from the URL's words; those of the start when there are none. */
export function readColumns(chosen: string | null): Column[] {
  const ids = chosen ? chosen.split(",") : DEFAULT_COLUMNS;
  const found = [...new Set(ids)].map(columnOf).filter((column) => column !== null);
  return found.length > 0 ? found : readColumns(null);
}

/** As the URL has it; null for those of the start. */
export function writeColumns(ids: string[]): string | null {
  return ids.join() === DEFAULT_COLUMNS.join() ? null : ids.join(",");
}

/** One column more, in the order in which columns are offered, or one less. */
export function toggleColumn(shown: string[], id: string, offered: string[]): string[] {
  if (shown.includes(id)) return shown.filter((one) => one !== id);
  return [...shown, id].sort((a, b) => offered.indexOf(a) - offered.indexOf(b));
}

export function offeredColumns(attributes: string[]): Column[] {
  const own = attributes.map((name) => columnOf(`${ATTRIBUTE}${name}`)).filter((column) => column !== null);
  return [...BASE, ...MORE, ...own];
}

function WorkflowCell({ run }: { run: RunSummary }) {
  return (
    <>
      <Link to={`/runs/${run.id}` as never} className="run-link" data-run={run.id} title={run.workflow}>
        {run.workflow}
      </Link>
      <span className="sub mono">{shortId(run.id)}</span>
    </>
  );
}

function WhyCell({ run }: { run: RunSummary }) {
  return (
    <>
      <span className={`only-narrow word st-${run.status}`}>{sentenceCase(run.status)}</span>
      <Why run={run} />
    </>
  );
}

function ParentCell({ run }: { run: RunSummary }) {
  if (!run.parent_id) return <span className="faint">–</span>;
  return <Link to={`/runs/${run.parent_id}` as never}>{shortId(run.parent_id)}</Link>;
}

/** The tick at two thirds is the workflow's p95. */
const P95_SHARE = 66.6;

function DurationCell({ run, p95 }: { run: RunSummary; p95: number | null }) {
  const active = isActive(run);
  const now = useNow(active && run.status === "running");
  if (run.status === "pending") return <span className="faint">–</span>;
  const took = ((run.finished_at ? ms(run.finished_at) : now) - ms(run.created_at)) / 1000;
  return (
    <div className="dur">
      <span className="num">{duration(took)}</span>
      {p95 !== null && p95 > 0 && (
        <span className={`bar ${took > p95 ? "over" : active ? "live" : ""}`} title={`p95 ${duration(p95)}`}>
          <i style={{ width: `${Math.min(100, (took / p95) * P95_SHARE)}%` }} />
        </span>
      )}
    </div>
  );
}

function AttemptsCell({ run }: { run: RunSummary }) {
  if (run.attempts === null || run.attempts === undefined) return <span className="faint">–</span>;
  return <span className={run.attempts > 1 ? "more" : "muted"}>{run.attempts}</span>;
}

function VersionCell({ run, facts }: { run: RunSummary; facts: RowFacts }) {
  const behind = facts.behind(run);
  return (
    <>
      <span title={run.version}>{shortVersion(run.version)}</span>
      {behind !== null && behind > 0 && (
        <span className="behind" title={`${behind} ${behind === 1 ? "version" : "versions"} behind the current one`}>
          −{behind}
        </span>
      )}
    </>
  );
}
