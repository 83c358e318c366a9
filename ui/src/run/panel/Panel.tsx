/** The selected task: how it is, its attempts with their errors, logs, input and output. */
import { Link } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { useSession } from "../../api/session";
import { duration, roughly } from "../../format/durations";
import { plural } from "../../format/numbers";
import { ms } from "../../format/times";
import { Copy } from "../../parts/Copy";
import { Icon } from "../../parts/icons";
import { Status } from "../../parts/Status";
import { useGo } from "../../shell/url";
import { useRunView } from "../context";
import { useTask } from "../data";
import { ForkDialog } from "../dialogs/ForkDialog";
import { RunLink } from "../Head";
import { isFan } from "../rows";
import { labelOf } from "../selection";
import type { RunTask, TimelineNode } from "../types";
import { CopyAsBox } from "./CopyAsBox";
import { FanBody, StepBody, TaskBody } from "./PanelBodies";
import { progressOf } from "./progress";

export function Panel() {
  const { name, selection, node, active, timeline, tasks } = useRunView();
  const [up, setUp] = useState(false);
  const seq = selection?.seq ?? node?.seq ?? null;
  const listed = tasks.flatMap((t) => t.items).find((t) => t.seq === seq) ?? null;
  const found = useTask(name, seq, active && !listed?.finished_at).data;
  const task = found ?? listed;
  // biome-ignore lint/correctness/useExhaustiveDependencies: another task closes the sheet's scroll, not the sheet
  useEffect(() => {
    document.querySelector(".panel-scroll")?.scrollTo({ top: 0 });
  }, [selection?.node, selection?.seq]);
  if (!selection)
    return (
      <aside className="panel" aria-label="Selected task">
        <div className="panel-head">
          <p className="muted">{timeline ? "Choose a task to see its attempts, logs and values." : ""}</p>
        </div>
      </aside>
    );
  return (
    <aside className={`panel ${up ? "up" : ""}`} aria-label="Selected task">
      <PanelHead task={task} up={up} onUp={() => setUp(!up)} />
      <div className="panel-scroll hide-down">
        <Body task={task} node={node} seq={seq} />
      </div>
      <CopyAsBox task={task} />
    </aside>
  );
}

function Body({ task, node, seq }: { task: RunTask | null; node: TimelineNode | null; seq: number | null }) {
  if (seq !== null)
    return task ? (
      <TaskBody task={task} />
    ) : (
      <p className="pad faint">This task is not scheduled, or its row is gone.</p>
    );
  if (node && isFan(node)) return <FanBody node={node} />;
  return node ? <StepBody node={node} /> : <p className="pad faint">The run has no such task.</p>;
}

function PanelHead({ task, up, onUp }: { task: RunTask | null; up: boolean; onUp: () => void }) {
  const { selection, node } = useRunView();
  const { may } = useSession();
  const go = useGo();
  const [forking, setForking] = useState(false);
  const label = task ? labelOf(task, node?.tasks === 1) : (selection?.node ?? "");
  const status = task?.status ?? node?.status;
  const progress = progressOf(task?.details);
  return (
    <div className="panel-head">
      <div className="row">
        <h2 className="grow clip" title={label}>
          {label}
        </h2>
        <span className="hide-narrow">
          <Copy text={location.href} label="Copy link to task" icon="link" />
        </span>
        {may("operate") && (
          <button type="button" className="btn sm hide-narrow" onClick={() => setForking(true)}>
            <Icon name="fork" size={14} />
            Fork from here
          </button>
        )}
        <button type="button" className="btn ghost sm sheet-close" aria-expanded={up} onClick={onUp}>
          {up ? "Close" : "Details"}
          <Icon name={up ? "down" : "up"} size={14} />
        </button>
      </div>
      <div className="row">
        {status && <Status status={status} />}
        <span className="muted clip">
          <Words task={task} />
        </span>
      </div>
      {task?.blocked && <p className="form-error small">Its worker's event loop is blocked; see the Workers page.</p>}
      {progress && (
        <>
          <div
            className="beat hide-down"
            role="progressbar"
            aria-valuemin={0}
            aria-valuemax={100}
            aria-valuenow={Math.round(progress.part * 100)}
            aria-label={progress.text}
          >
            <i style={{ width: `${progress.part * 100}%` }} />
          </div>
          {progress.text && <p className="faint small hide-down">{progress.text}</p>}
        </>
      )}
      {forking && <ForkDialog onClose={() => setForking(false)} onDone={(id) => go(`/runs/${id}`)} />}
    </div>
  );
}

/** One line about the task, by what it is doing. */
function Words({ task }: { task: RunTask | null }) {
  const { node, now } = useRunView();
  const since = (at: string | null | undefined) => (at && now !== null ? (now - ms(at)) / 1000 : 0);
  if (!task) {
    if (!node) return null;
    if (node.child_run)
      return (
        <>
          child run <RunLink id={node.child_run} />
        </>
      );
    if (isFan(node))
      return (
        <>
          {plural(node.tasks, "task")}
          {node.finished_at && node.started_at
            ? `, ${duration((ms(node.finished_at) - ms(node.started_at)) / 1000)}`
            : ""}
        </>
      );
    if (node.status === "pending")
      return <>{node.after.length ? `waits for ${node.after.join(", ")}` : "has not begun"}</>;
    return <>{node.kind === "task" ? "" : node.kind}</>;
  }
  if (task.status === "running")
    return (
      <>
        attempt {task.attempts} on{" "}
        <Link to={"/workers" as never} className="link mono">
          {task.worker ?? "a worker"}
        </Link>
        {task.started_at && `, for ${duration(since(task.started_at))}`}
      </>
    );
  if (task.status === "dispatched") return <>sent to {task.worker ?? "an engine"}</>;
  if (task.status === "pending")
    return (
      <>
        {task.run_at && since(task.run_at) < 0
          ? `next attempt in ${roughly(-since(task.run_at))}`
          : `queued on ${task.queue} for ${duration(since(task.scheduled_at))}`}
      </>
    );
  const took = task.started_at && task.finished_at ? (ms(task.finished_at) - ms(task.started_at)) / 1000 : null;
  return (
    <>
      {[task.attempts > 1 ? plural(task.attempts, "attempt") : "", took === null ? "" : duration(took)]
        .filter(Boolean)
        .join(", ")}
      {task.worker && (
        <>
          {" on "}
          <span className="mono">{task.worker}</span>
        </>
      )}
      {task.copied && ", copied from the run that this is a fork of"}
    </>
  );
}
