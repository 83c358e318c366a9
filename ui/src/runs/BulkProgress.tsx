/** A bulk job that goes on, above the list. */
import { Link } from "@tanstack/react-router";
import { useEffect } from "react";
import { count } from "../format/numbers";
import { Icon } from "../parts/icons";
import { handled, isDone, jobTitle } from "./bulk";
import type { BulkJob } from "./data";
import { useBulkJob } from "./useBulkJob";

const PROGRESS_MS = 1_000;

/** `onProgress` is called when runs were handled, after a moment: their runs settle. */
export function BulkProgress({ id, onClose, onProgress }: { id: string; onClose: () => void; onProgress: () => void }) {
  const { data: job } = useBulkJob(id);
  const n = job ? handled(job) : 0;
  const status = job?.status;
  // biome-ignore lint/correctness/useExhaustiveDependencies: what changed is the number of runs
  useEffect(() => {
    if (n === 0) return;
    const timer = setTimeout(onProgress, PROGRESS_MS);
    return () => clearTimeout(timer);
  }, [Math.floor(n / 20), status, onProgress]);
  if (!job) return null;
  return (
    <div className="bulk" role="status" aria-label="Bulk job">
      <b>{jobTitle(job)}</b>
      <ProgressBar job={job} />
      <span>
        {count(handled(job))} of {count(job.matched)}
        {job.skipped > 0 && ` · ${count(job.skipped)} skipped`}
        {job.failed > 0 && ` · ${count(job.failed)} failed`}
        {isDone(job) && ` · ${job.status === "success" ? "finished" : job.status}`}
      </span>
      <i />
      <Link to={`/bulk-jobs/${job.id}` as never} className="bulk-link">
        Open job
      </Link>
      <button type="button" aria-label="Hide the job" title="Hide; the job goes on" onClick={onClose}>
        <Icon name="x" size={14} />
      </button>
    </div>
  );
}

export function ProgressBar({ job }: { job: BulkJob }) {
  const share = (n: number) => `${job.matched > 0 ? (n / job.matched) * 100 : 0}%`;
  return (
    <span
      className="job-bar"
      role="progressbar"
      aria-label="Runs handled"
      aria-valuemin={0}
      aria-valuemax={job.matched}
      aria-valuenow={handled(job)}
    >
      <em className="fill-success" style={{ width: share(job.done) }} />
      <em className="fill-pending" style={{ width: share(job.skipped) }} />
      <em className="fill-failed" style={{ width: share(job.failed) }} />
    </span>
  );
}
