import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { shortId } from "../format/ids";
import { plural } from "../format/numbers";
import { ActError, useAct } from "../parts/acts";
import { Copy } from "../parts/Copy";
import { FormDialog } from "../parts/Dialog";
import { visible } from "../parts/Payload";
import { startBulkJob } from "../runs/data";
import { useGo } from "../shell/url";
import { add, command, type Filter, NOTHING, type Progress, runQuery, words } from "./filter";

/** Runs that one request retries at most. */
const BATCH = 100;
const REFUSED_SHOWN = 50;

function request(filter: Filter, runs: string[] | undefined, dry_run: boolean, cursor: string | null) {
  // Named runs take no filter, not even an empty one.
  const what = runs ? { runs, dry_run } : { ...filter, dry_run, limit: BATCH, cursor };
  return body(api.POST("/api/v1/dead-letters/retry", { body: what as Schemas["RetryDeadLettersRequest"] }));
}

/** Retries the named runs, or all that match, one batch after the other. It is safe to repeat. */
export function RetryDialog({ filter, runs, onClose }: { filter: Filter; runs?: string[]; onClose: () => void }) {
  const [progress, setProgress] = useState<Progress | null>(null);
  const first = runs?.slice(0, BATCH);
  const look = useQuery({
    queryKey: ["dead-letters-look", filter, first],
    queryFn: () => request(filter, first, true, null),
    staleTime: 0,
    gcTime: 0,
    retry: false,
  });
  const query = runs ? null : runQuery(filter);
  const [asJob, setAsJob] = useState(false);
  const [key] = useState(() => crypto.randomUUID?.() ?? String(Math.random()));
  const go = useGo();
  const job = useAct({
    // One key for this question: an answer that got lost may be sent again.
    act: () => startBulkJob({ action: "retry", query: query ?? "", key }),
    inForm: true,
    onDone: (started) => go(`/bulk-jobs/${started.id}`),
  });
  const act = useAct({
    act: async () => {
      let done = NOTHING;
      for await (const step of steps(filter, runs)) {
        done = add(done, step.items, step.isLast);
        setProgress(done);
      }
    },
    refresh: [["dead-letters"], ["counts"]],
    inForm: true,
  });
  const would = look.data?.items.filter((o) => o.outcome === "would_retry").length ?? 0;
  const more = look.data?.next || (runs && runs.length > BATCH);
  const isOver = progress?.isOver === true;
  return (
    <FormDialog
      title={runs ? `Retry ${plural(runs.length, "run")}` : "Retry all matching"}
      submit={
        isOver
          ? "Done"
          : runs
            ? `Retry ${plural(runs.length, "run")}`
            : asJob
              ? "Start the job"
              : more
                ? "Retry all"
                : `Retry ${plural(would, "run")}`
      }
      busy={act.isPending || job.isPending}
      disabled={!asJob && !isOver && look.isSuccess && would === 0 && !more}
      onClose={onClose}
      onSubmit={() => (isOver ? onClose() : asJob ? job.mutate() : act.mutate())}
    >
      <p>
        The runs of the dead letters {runs ? "that you selected" : words(filter) || "of this namespace"} start again
        from what failed. Tasks that succeeded keep their results.
      </p>
      {!progress && look.data && (
        <p className="muted" role="status">
          {more ? "At least " : ""}
          {plural(would, "run")} can be retried
          {look.data.items.length > would && `, ${plural(look.data.items.length - would, "run")} cannot`}.
        </p>
      )}
      {progress && (
        <p role="status">
          {plural(progress.retried, "run")} retried
          {progress.refused.length > 0 && `, ${progress.refused.length} refused`}
          {progress.isOver ? "." : "…"}
        </p>
      )}
      {progress && progress.refused.length > 0 && <Refused progress={progress} />}
      {!runs && (
        <p className="row faint small">
          <code className="clip">{command(filter)}</code>
          <Copy text={command(filter)} label="Copy command" />
        </p>
      )}
      {query !== null && !progress && !act.isPending && (
        <label className="row">
          <input type="checkbox" className="check" checked={asJob} onChange={(e) => setAsJob(e.target.checked)} />
          <span>
            As a job of the server{" "}
            <span className="muted">
              It goes on when this page is closed. It retries every failed run that matches, also those that failed
              without a dead letter.
            </span>
          </span>
        </label>
      )}
      <ActError error={act.error ?? job.error ?? look.error} />
    </FormDialog>
  );
}

async function* steps(filter: Filter, runs: string[] | undefined) {
  if (runs) {
    for (let n = 0; n < runs.length; n += BATCH) {
      const page = await request(filter, runs.slice(n, n + BATCH), false, null);
      yield { items: page.items, isLast: n + BATCH >= runs.length };
    }
    return;
  }
  let cursor: string | null = null;
  do {
    const page: Schemas["Page_RetryOutcome_"] = await request(filter, undefined, false, cursor);
    cursor = page.next;
    yield { items: page.items, isLast: cursor === null };
  } while (cursor !== null);
}

function Refused({ progress }: { progress: Progress }) {
  return (
    <ul className="refused scroll">
      {progress.refused.slice(0, REFUSED_SHOWN).map((r) => (
        <li key={r.run_id}>
          <Link className="link mono" to={`/runs/${r.run_id}` as never}>
            {shortId(r.run_id)}
          </Link>{" "}
          <span className="muted">{visible(r.reason ?? "")}</span>
        </li>
      ))}
      {progress.refused.length > REFUSED_SHOWN && (
        <li className="faint">and {progress.refused.length - REFUSED_SHOWN} more</li>
      )}
    </ul>
  );
}
