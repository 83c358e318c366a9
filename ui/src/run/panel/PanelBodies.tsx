/** The sections of the panel: for one task, for a fan-out, and for a step that is no task. */
import { useState } from "react";
import { duration } from "../../format/durations";
import { count } from "../../format/numbers";
import { clock, ms, time } from "../../format/times";
import type { StatusWord } from "../../parts/icons";
import { Payload, visible } from "../../parts/Payload";
import { Status } from "../../parts/Status";
import { Failed } from "../../parts/states";
import { useUrl } from "../../shell/url";
import { useRunView } from "../context";
import { useAttempts, useLogPages, useTaskValues } from "../data";
import { RunLink } from "../Head";
import { sizeOf } from "../IoTab";
import { levelOf } from "../logBuffer";
import { labelOf } from "../selection";
import type { Attempt, RunTask, Segment, TimelineNode } from "../types";
import { approvalHref } from "../waits";
import { ErrorView } from "./ErrorView";
import { progressOf } from "./progress";

export function TaskBody({ task }: { task: RunTask }) {
  const { name, run, active } = useRunView();
  const open = active && !task.finished_at;
  const attempts = useAttempts(name, String(task.seq), open);
  const [chosen, setChosen] = useState<number | null>(null);
  const newest = [...(attempts.data?.items ?? [])].reverse();
  const shown = newest.find((a) => numberOf(a) === chosen) ?? newest.find((a) => a.error);
  return (
    <>
      <section>
        <h3>
          Attempts <span className="faint">{queuedWords(task.segments ?? [])}</span>
        </h3>
        {attempts.error && <Failed error={attempts.error} retry={() => void attempts.refetch()} />}
        {newest.length === 0 && !attempts.isPending && <p className="faint">None yet.</p>}
        {newest.map((attempt) => (
          <AttemptRow
            key={`${attempt.epoch}.${attempt.attempt}`}
            attempt={attempt}
            on={attempt === shown}
            onChoose={() => setChosen(numberOf(attempt))}
          />
        ))}
        {attempts.data?.more && <p className="faint small">The first 100 are shown.</p>}
      </section>
      {shown?.error && (
        <section>
          <h3>
            Error of attempt {shown.attempt}{" "}
            <span className="faint">{shown.finished_at ? time(shown.finished_at) : ""}</span>
          </h3>
          <ErrorView error={shown.error} />
        </section>
      )}
      {!shown?.error && task.error && task.status !== "success" && (
        <section>
          <h3>Error</h3>
          <div className="err">
            <p>{visible(task.error.slice(0, 4_000))}</p>
          </div>
        </section>
      )}
      <TaskLogs task={task} open={open} />
      {task.details !== null && task.details !== undefined && !progressOf(task.details) && (
        <section>
          <h3>Progress</h3>
          <Payload value={task.details} />
        </section>
      )}
      <Values task={task} events={run.events} />
    </>
  );
}

/** Attempts are counted anew in each epoch of a run. */
const numberOf = (a: Attempt) => a.epoch * 100_000 + a.attempt;

const OUTCOMES: Record<string, StatusWord> = {
  success: "success",
  error: "failed",
  timeout: "failed",
  lost: "failed",
  cancelled: "cancelled",
};

function AttemptRow({ attempt, on, onChoose }: { attempt: Attempt; on: boolean; onChoose: () => void }) {
  const { now } = useRunView();
  const status: StatusWord = attempt.outcome ? (OUTCOMES[attempt.outcome] ?? "failed") : "running";
  const word = attempt.outcome === "timeout" ? "Timeout" : attempt.outcome === "lost" ? "Lost" : undefined;
  const took =
    attempt.wall_s ??
    (attempt.started_at
      ? ((attempt.finished_at ? ms(attempt.finished_at) : (now ?? ms(attempt.started_at))) - ms(attempt.started_at)) /
        1000
      : null);
  const says = attempt.error
    ? attempt.error.type || attempt.error.code
    : [attempt.worker, attempt.started_at ? `${attempt.outcome ? "at" : "since"} ${clock(attempt.started_at)}` : ""]
        .filter(Boolean)
        .join(", ");
  return (
    <button
      type="button"
      className={`att ${on ? "on" : ""}`}
      aria-pressed={on}
      onClick={onChoose}
      title={[attempt.worker, attempt.error?.message].filter(Boolean).join("\n")}
    >
      <span className="faint">#{attempt.attempt}</span>
      <Status status={status} word={word} />
      <span className="clip muted">{says}</span>
      <span className="num">{duration(took)}</span>
    </button>
  );
}

function queuedWords(segments: Segment[]): string {
  const queued = segments
    .filter((s) => s.kind === "queued")
    .reduce((sum, s) => sum + (ms(s.to) - ms(s.from)) / 1000, 0);
  return queued >= 1 ? `queued ${duration(queued)} in all` : "";
}

const LOGS_SHOWN = 6;

function TaskLogs({ task, open }: { task: RunTask; open: boolean }) {
  const { name } = useRunView();
  const url = useUrl();
  const pages = useLogPages(name, task.seq, true, LOGS_SHOWN);
  const lines = [...(pages.data?.pages[0]?.items ?? [])].reverse();
  return (
    <section>
      <h3>
        Logs
        <button type="button" className="link faint" onClick={() => url.set({ tab: "logs", logs: "task" })}>
          {open ? "following" : "open"}
        </button>
      </h3>
      {lines.length === 0 && !pages.isPending && <p className="faint">Nothing printed.</p>}
      <div className="log mini">
        {lines.map((line, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: lines have no id of their own
          <div key={n} className={{ debug: "", info: "", warning: "warn", error: "error" }[levelOf(line)]}>
            <span className="t">{clock(line.at)}</span>
            <span className="m">{visible(line.text.slice(0, 500))}</span>
          </div>
        ))}
      </div>
    </section>
  );
}

function Values({ task, events }: { task: RunTask; events: number }) {
  const { name } = useRunView();
  const { input, output } = useTaskValues(name, task, events);
  return (
    <>
      <section>
        <h3>
          Input <span className="faint">{input.data ? sizeOf(input.data.value) : ""}</span>
        </h3>
        {input.data ? (
          <Payload value={input.data.value} />
        ) : (
          <p className="faint">
            {input.isFetching
              ? "Reading the history…"
              : input.error
                ? input.error.message
                : "Not found in the history."}
          </p>
        )}
      </section>
      <section>
        <h3>
          Output <span className="faint">{output.data ? sizeOf(output.data.value) : ""}</span>
        </h3>
        {output.data ? (
          <Payload value={output.data.value} />
        ) : (
          <p className="faint">
            {task.status === "success"
              ? output.isFetching
                ? "Reading the history…"
                : "Not found in the history."
              : task.finished_at
                ? "None."
                : "Not yet."}
          </p>
        )}
      </section>
    </>
  );
}

const ORDER: StatusWord[] = ["failed", "running", "dispatched", "pending", "success", "skipped", "cancelled"];

export function FanBody({ node }: { node: TimelineNode }) {
  const { open, setOpen, tasks, select } = useRunView();
  const items = tasks.find((t) => t.open.node === node.node)?.items.slice(0, 8) ?? [];
  const only = (status: string) =>
    setOpen([...open.filter((o) => o.node !== node.node), { node: node.node, status, shown: 56 }]);
  return (
    <>
      <section>
        <h3>
          Tasks <span className="faint">{count(node.tasks)}</span>
        </h3>
        {ORDER.filter((s) => node.counts[s]).map((s) => (
          <button key={s} type="button" className="att" onClick={() => only(s)} title={`List those that are ${s}`}>
            <span />
            <Status status={s} />
            <span />
            <span className="num">{count(node.counts[s])}</span>
          </button>
        ))}
      </section>
      {node.durations && (
        <section>
          <h3>Durations</h3>
          <dl className="kv">
            <dt>Median</dt>
            <dd>{duration(node.durations.p50_s)}</dd>
            <dt>p95</dt>
            <dd>{duration(node.durations.p95_s)}</dd>
            <dt>Longest</dt>
            <dd>{duration(node.durations.max_s)}</dd>
          </dl>
        </section>
      )}
      {node.error && (
        <section>
          <h3>An error</h3>
          <div className="err">
            <p>{visible(node.error)}</p>
          </div>
        </section>
      )}
      {items.length > 0 && (
        <section>
          <h3>Notable</h3>
          {items.map((task) => (
            <button
              key={task.seq}
              type="button"
              className="att wide"
              onClick={() => select({ node: node.node, seq: task.seq })}
            >
              <Status status={task.status} />
              <span className="clip mono">{labelOf(task)}</span>
              <span className="num">
                {task.started_at && task.finished_at
                  ? duration((ms(task.finished_at) - ms(task.started_at)) / 1000)
                  : ""}
              </span>
            </button>
          ))}
        </section>
      )}
    </>
  );
}

export function StepBody({ node }: { node: TimelineNode }) {
  const { run, now } = useRunView();
  const wait = run.waiting?.waits.find(
    (w) => w.name === node.node || (w.on === node.kind && node.status === "running"),
  );
  return (
    <>
      <section>
        <h3>
          {
            {
              timer: "Timer",
              child: "Child run",
              approval: "Approval",
              signal: "Signal",
              promise: "Promise",
              choice: "Choice",
              task: "Task",
              fanout: "Tasks",
            }[node.kind]
          }
        </h3>
        <dl className="kv">
          {node.first_at && (
            <>
              <dt>Asked for</dt>
              <dd>{time(node.first_at)}</dd>
            </>
          )}
          {node.finished_at && (
            <>
              <dt>Ended</dt>
              <dd>{time(node.finished_at)}</dd>
            </>
          )}
          {node.first_at && (
            <>
              <dt>{node.finished_at ? "Took" : "For"}</dt>
              <dd>
                {duration(
                  ((node.finished_at ? ms(node.finished_at) : (now ?? ms(node.first_at))) - ms(node.first_at)) / 1000,
                )}
              </dd>
            </>
          )}
          {node.after.length > 0 && (
            <>
              <dt>After</dt>
              <dd className="mono">{node.after.join(", ")}</dd>
            </>
          )}
          {node.expected_s !== null && !node.finished_at && (
            <>
              <dt>Expected</dt>
              <dd>{duration(node.expected_s)}, the median of earlier runs</dd>
            </>
          )}
          {node.child_run && (
            <>
              <dt>Run</dt>
              <dd>
                <RunLink id={node.child_run} />
              </dd>
            </>
          )}
        </dl>
        {node.kind === "approval" && wait && (
          <p className="pad-top">
            <a className="link" href={approvalHref(run.id, wait.name ?? "")}>
              {wait.by?.length ? `To be decided by ${wait.by.join(", ")}` : "Open the approval"}
            </a>
          </p>
        )}
      </section>
      {node.error && (
        <section>
          <h3>Error</h3>
          <div className="err">
            <p>{visible(node.error)}</p>
          </div>
        </section>
      )}
    </>
  );
}
