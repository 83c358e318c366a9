/** One worker: what blocks it, what it runs, its process. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { duration } from "../format/durations";
import { count, plural, rate } from "../format/numbers";
import { Copy } from "../parts/Copy";
import { Icon, StatusMark } from "../parts/icons";
import { visible } from "../parts/Payload";
import { taskPage } from "../parts/rows";
import { Failed } from "../parts/states";
import { Elapsed, Relative, Time, useNow } from "../parts/Time";
import { type RunningTask, useWorker } from "./data";
import type { Worker } from "./queues";
import { culprit, type Frame, readStack, shortFile } from "./stack";
import { WorkerState } from "./WorkersPage";

const TASKS_SHOWN = 12;

export function WorkerPanel({ worker }: { worker: Worker }) {
  const now = useNow();
  const detail = useWorker(worker.id);
  const tasks = detail.data?.running ?? [];
  return (
    <aside className="wp scroll" aria-label={`Worker ${worker.name}`}>
      <header>
        <div className="row">
          <h2 className="grow clip">{worker.name}</h2>
          <Copy text={worker.id} label="Copy the worker's id" />
        </div>
        <div className="row muted">
          <WorkerState worker={worker} now={now} />
          <span className="clip">
            {worker.host}, pid {worker.pid}, up <Elapsed from={worker.connected_at} />
          </span>
        </div>
      </header>
      {worker.blocked && <Blocked worker={worker} stack={worker.blocked} tasks={tasks} />}
      <section>
        <h3>
          Running here{" "}
          <span className="faint">
            {count(worker.slots_used)} of {count(worker.slots)} slots
          </span>
        </h3>
        <Running worker={worker} tasks={tasks} error={detail.error} isPending={detail.isPending} />
      </section>
      <Process worker={worker} />
      <Serves worker={worker} />
    </aside>
  );
}

function Blocked({ worker, stack, tasks }: { worker: Worker; stack: string; tasks: RunningTask[] }) {
  const read = readStack(stack);
  const frame = culprit(read);
  const others = worker.slots_used - 1;
  return (
    <section>
      <h3>
        Event loop{" "}
        <span className="faint">
          sampled <Relative at={worker.seen_at} />
        </span>
      </h3>
      <div className="blocked">
        <b>Blocked by {frame ? `${frame.inside || shortFile(frame.file)}` : "one task"}</b>
        <span>
          {frame && <code>{shortFile(frame.file)}</code>} runs on the event loop and does not give it back.
          {others > 0 && ` ${plural(others, "other task")} on this worker ${others === 1 ? "waits" : "wait"} for it.`}
          {tasks.length === 1 && tasks[0] && (
            <>
              {" "}
              It is <TaskLink task={tasks[0]} />.
            </>
          )}
        </span>
      </div>
      <div className="stack">
        {read.own.map((f, n) => (
          <FrameLine key={`${f.file}${f.line}${f.inside}`} frame={f} kind={n === 0 ? "top1" : "mine"} />
        ))}
        {read.own.length === 0 && read.library[0] && <FrameLine frame={read.library[0]} kind="top1" />}
        <LibraryFrames frames={read.library} packages={read.packages} />
      </div>
      <p className="fix">
        <Icon name="signal" size={14} />
        <span>
          Make it <code>@task(process=True)</code> to run it in a process, a plain <code>def</code> to run it in a
          thread, or move the call into <code>asyncio.to_thread()</code>.
        </span>
      </p>
    </section>
  );
}

function FrameLine({ frame, kind }: { frame: Frame; kind: "top1" | "mine" | "lib" }) {
  return (
    <div className={kind}>
      <span title={frame.file}>
        {shortFile(frame.file)}:{frame.line}
      </span>
      {frame.inside && <span className="faint"> in {frame.inside}</span>}
      {frame.source && <code className="src">{visible(frame.source)}</code>}
    </div>
  );
}

function LibraryFrames({ frames, packages }: { frames: Frame[]; packages: string[] }) {
  const [isOpen, setOpen] = useState(false);
  if (frames.length === 0) return null;
  return (
    <>
      <div>
        <button type="button" className="lib row" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name={isOpen ? "down" : "right"} size={12} />
          {plural(frames.length, "library frame")}: {packages.join(", ")}
        </button>
      </div>
      {isOpen && frames.map((f) => <FrameLine key={`${f.file}${f.line}${f.inside}`} frame={f} kind="lib" />)}
    </>
  );
}

function TaskLink({ task }: { task: RunningTask }) {
  return (
    <Link className="link mono" to={taskPage(task) as never}>
      {task.node ?? task.name}
    </Link>
  );
}

function began(task: RunningTask): number {
  return task.started_at ? Date.parse(task.started_at) : Number.POSITIVE_INFINITY;
}

function Running(props: { worker: Worker; tasks: RunningTask[]; error: Error | null; isPending: boolean }) {
  const { worker, tasks } = props;
  const now = useNow();
  if (props.error && tasks.length === 0) return <Failed error={props.error} />;
  if (tasks.length === 0)
    return (
      <p className="faint">
        {props.isPending ? "" : worker.slots_used === 0 ? "Nothing at the moment." : "They began a moment ago."}
      </p>
    );
  const ordered = [...tasks].sort((a, b) => began(a) - began(b));
  const left = Math.max(worker.slots_used, tasks.length) - Math.min(TASKS_SHOWN, tasks.length);
  return (
    <ul className="tasklist">
      {ordered.slice(0, TASKS_SHOWN).map((task) => (
        <li key={`${task.run_id}/${task.seq}`}>
          <StatusMark status="running" />
          <TaskLink task={task} />
          {task.attempt > 1 && <span className="tag attention">attempt {task.attempt}</span>}
          <span className="faint clip">{task.workflow}</span>
          <span className="grow" />
          <span className="muted">{task.started_at ? duration((now - Date.parse(task.started_at)) / 1000) : "–"}</span>
        </li>
      ))}
      {left > 0 && <li className="faint">and {count(left)} more</li>}
    </ul>
  );
}

function Process({ worker }: { worker: Worker }) {
  const facts: [string, React.ReactNode][] = [
    [
      "Last 5 m",
      `${plural(worker.ended ?? 0, "attempt")} ended, ${count(worker.failed ?? 0)} failed, ${rate(worker.per_s ?? 0)} / s`,
    ],
    [
      "Took",
      worker.p50_s === null || worker.p50_s === undefined
        ? "–"
        : `p50 ${duration(worker.p50_s)}, p95 ${duration(worker.p95_s)}`,
    ],
    ["Cached runs", count(worker.runs_held)],
    ["Connected to", worker.engine ?? "–"],
    ["Since", <Time key="since" at={worker.connected_at} />],
    ["SDK", worker.sdk],
  ];
  return (
    <section>
      <h3>Process</h3>
      <dl className="kv">
        {facts.map(([name, value]) => [<dt key={`${name}-name`}>{name}</dt>, <dd key={`${name}-value`}>{value}</dd>])}
      </dl>
    </section>
  );
}

function Serves({ worker }: { worker: Worker }) {
  return (
    <section>
      <h3>Serves</h3>
      <dl className="kv">
        <dt>Queues</dt>
        <dd>{worker.queues.join(", ")}</dd>
        <dt>Workflows</dt>
        <dd className="serves">
          {worker.workflows.length === 0
            ? "–"
            : worker.workflows.map((name) => (
                <Link key={name} className="link" to={`/workflows/${encodeURIComponent(name)}` as never}>
                  {name}
                </Link>
              ))}
        </dd>
        <dt>Tasks</dt>
        <dd className="muted mono">{worker.tasks.join(", ") || "–"}</dd>
      </dl>
    </section>
  );
}
