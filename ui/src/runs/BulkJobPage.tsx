/** One bulk job: how far it is, and what came of each run. */
import { Actor } from "../parts/Actor";
import "./runs.css";
import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { useEffect } from "react";
import { api } from "../api/client";
import { useSession } from "../api/session";
import { shortId } from "../format/ids";
import { count } from "../format/numbers";
import { Icon } from "../parts/icons";
import { brief } from "../parts/Payload";
import { Status, sentenceCase } from "../parts/Status";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Segments } from "../parts/Tabs";
import { Elapsed, Time } from "../parts/Time";
import { TopBar } from "../shell/TopBar";
import { toast } from "../shell/toasts";
import { useUrl } from "../shell/url";
import { ProgressBar } from "./BulkProgress";
import { ACTIONS, handled, isDone, jobTitle } from "./bulk";
import { type BulkJob, type BulkOutcome, bulkJobQuery, outcomesQuery } from "./data";
import { useBulkJob } from "./useBulkJob";

type Outcome = BulkOutcome["outcome"];
const OUTCOMES: Outcome[] = ["failed", "skipped", "done", "pending"];

export function BulkJobPage() {
  const { id = "" } = useParams({ strict: false }) as { id?: string };
  const { data: job, error, refetch } = useBulkJob(id);
  return (
    <>
      <TopBar
        title="Bulk job"
        ownHeading={!!job}
        crumbs={[{ label: "Runs", href: "/runs" }, { label: <>Bulk job {shortId(id)}</> }]}
      >
        {job && !isDone(job) && <CancelJob job={job} />}
      </TopBar>
      {job ? <Job job={job} /> : error ? <Failed error={error} retry={() => void refetch()} /> : <Skeleton />}
    </>
  );
}

function CancelJob({ job }: { job: BulkJob }) {
  const { may } = useSession();
  const client = useQueryClient();
  const cancel = useMutation({
    mutationFn: () => api.POST("/api/v1/bulk-jobs/{id}/cancel", { params: { path: { id: job.id } } }),
    onSuccess: () => client.invalidateQueries({ queryKey: bulkJobQuery(job.id).queryKey }),
    onError: (error) => toast(error.message),
  });
  if (!may("operate")) return null;
  return (
    <button
      type="button"
      className="btn"
      disabled={cancel.isPending || cancel.isSuccess}
      onClick={() => cancel.mutate()}
    >
      <Icon name="stop" />
      {cancel.isPending || cancel.isSuccess ? "Stopping…" : "Stop job"}
    </button>
  );
}

function Job({ job }: { job: BulkJob }) {
  const url = useUrl();
  const counts: Record<Outcome, number> = {
    failed: job.failed,
    skipped: job.skipped,
    done: job.done,
    pending: Math.max(0, job.matched - handled(job)),
  };
  const asked = url.get("outcome") as Outcome | null;
  const outcome = asked && OUTCOMES.includes(asked) ? asked : (OUTCOMES.find((one) => counts[one] > 0) ?? "done");
  return (
    <div className="job scroll">
      <header className="job-head">
        <Status status={job.status} pill />
        <h1>{jobTitle(job)}</h1>
        <ProgressBar job={job} />
        <span className="muted">
          {count(handled(job))} of {count(job.matched)}
        </span>
      </header>
      <Facts job={job} />
      {job.error && <p className="form-error">{brief(job.error, 1000)}</p>}
      <div className="row">
        <Segments
          label="What came of the runs"
          value={outcome}
          onChange={(next) => url.set({ outcome: next })}
          options={OUTCOMES.map((one) => ({
            id: one,
            label: (
              <>
                {sentenceCase(one)} <span className="count">{count(counts[one])}</span>
              </>
            ),
          }))}
        />
      </div>
      <Outcomes job={job} outcome={outcome} n={counts[outcome]} />
    </div>
  );
}

function Facts({ job }: { job: BulkJob }) {
  return (
    <dl className="kv">
      <dt>Action</dt>
      <dd>
        {ACTIONS[job.action].verb}
        {job.dry_run && <span className="tag">dry run: nothing is done</span>}
      </dd>
      <dt>Query</dt>
      <dd>
        {job.query ? (
          <Link to={`/runs?q=${encodeURIComponent(job.query)}` as never} className="link mono job-query">
            {brief(job.query, 300)}
          </Link>
        ) : (
          "every run"
        )}
      </dd>
      {job.reason && (
        <>
          <dt>Reason</dt>
          <dd>{brief(job.reason, 1000)}</dd>
        </>
      )}
      <dt>Started</dt>
      <dd>
        <Time at={job.created_at} /> by <Actor subject={job.created_by} />
      </dd>
      <dt>Duration</dt>
      <dd>
        <Elapsed from={job.created_at} to={job.finished_at} />
      </dd>
    </dl>
  );
}

const WHY_NONE: Record<Outcome, string> = {
  failed: "No run refused.",
  skipped: "No run was skipped.",
  done: "No run is done yet.",
  pending: "No run is left.",
};

function Outcomes({ job, outcome, n }: { job: BulkJob; outcome: Outcome; n: number }) {
  const query = useInfiniteQuery(outcomesQuery(job.id, outcome));
  const { refetch } = query;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the list is read again when its number changes
  useEffect(() => void refetch(), [n, refetch]);
  const items = query.data?.pages.flatMap((page) => page.items) ?? [];
  if (query.isPending) return <Skeleton rows={4} />;
  if (query.error) return <Failed error={query.error} retry={() => void refetch()} />;
  if (items.length === 0) return <Empty title={WHY_NONE[outcome]} />;
  return (
    <>
      <table className="grid" aria-label={`Runs: ${outcome}`}>
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">Outcome</th>
            <th scope="col">Message</th>
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <tr key={item.run_id}>
              <td className="mono">
                <Link to={`/runs/${item.run_id}` as never} className="link">
                  {item.run_id}
                </Link>
              </td>
              <td className={item.outcome === "failed" ? "st-failed" : "muted"}>{sentenceCase(item.outcome)}</td>
              <td className="muted">{brief(item.message, 300) || "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {query.hasNextPage && (
        <button
          type="button"
          className="btn"
          disabled={query.isFetchingNextPage}
          onClick={() => void query.fetchNextPage()}
        >
          Load more
        </button>
      )}
    </>
  );
}
