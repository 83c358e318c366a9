/** What a run waits for or why it failed, in the engine's words. */
import type { ReactNode } from "react";
import { Icon, type IconName } from "../parts/icons";
import { brief } from "../parts/Payload";
import { Sentence } from "../parts/Sentence";
import { Time } from "../parts/Time";
import { isActive, type RunSummary } from "./matching";

const CHARS_SHOWN = 300;
const ICONS: Record<string, IconName> = {
  stuck: "warn",
  approval: "person",
  signal: "signal",
  event: "signal",
  promise: "wait",
  update: "signal",
  child: "fork",
  limit: "limit",
  rate: "limit",
  paused: "pause",
  retry: "retry",
  no_worker: "wait",
  no_worker_for_version: "wait",
  version: "wait",
  slot: "wait",
  dependency: "flow",
  task: "worker",
  timer: "clock",
};

export function Why({ run }: { run: RunSummary }) {
  if (run.stuck && isActive(run)) return <Line icon="warn" className="warned" text={run.stuck} lead="stuck" />;
  if (run.error) return <ErrorLine run={run} />;
  if (run.paused_at && isActive(run)) return <PausedLine run={run} />;
  if (!run.waiting || !isActive(run)) return null;
  const { reason, on, waits } = run.waiting;
  if (!reason) return null;
  return (
    <Line icon={ICONS[on] ?? "wait"} text={reason} names={waits.flatMap((wait) => [wait.name ?? "", wait.key ?? ""])} />
  );
}

function ErrorLine({ run }: { run: RunSummary }) {
  const { type, code, message } = run.error as NonNullable<RunSummary["error"]>;
  // A cancelled run did not fail: its reason is a note.
  if (run.status === "cancelled") return <Line text={message || code} />;
  const { lead, rest } = splitError(type, code, message);
  return <Line className="is-error" text={rest} lead={lead} />;
}

/** The exception's class before the rest. A run's message often begins with that of the task which failed. */
export function splitError(type: string | undefined, code: string, message: string): { lead: string; rest: string } {
  const named = /^([A-Z][\w.]{2,60}): /.exec(message);
  if (named) return { lead: named[1] as string, rest: message.slice(named[0].length) };
  return { lead: type || (GENERIC.has(code) ? "" : code), rest: message || code };
}

/** Codes that say no more than the status does. */
const GENERIC = new Set(["run_failed", "task_failed"]);

function PausedLine({ run }: { run: RunSummary }) {
  return (
    <div className="why">
      <Icon name="pause" size={14} />
      <span className="clip">
        paused since <Time at={run.paused_at} />
      </span>
    </div>
  );
}

function Line(props: { icon?: IconName; className?: string; text: string; lead?: string; names?: string[] }) {
  const text = brief(props.text, CHARS_SHOWN);
  return (
    <div className={`why ${props.className ?? ""}`}>
      {props.icon && <Icon name={props.icon} size={14} />}
      <span className="clip" title={brief(props.text, 1000)}>
        {props.lead && <b>{brief(props.lead, 80)} </b>}
        {props.names ? stressed(text, props.names) : <Sentence text={text} />}
      </span>
    </div>
  );
}

/** The first name that the sentence quotes, in strong type and without the quotes. */
export function stressed(text: string, names: string[]): ReactNode[] {
  for (const name of names) {
    const quoted = [`'${name}'`, `"${name}"`, name].find((form) => name && text.includes(form));
    if (!quoted) continue;
    const at = text.indexOf(quoted);
    return [
      <Sentence key="before" text={text.slice(0, at)} />,
      <b key="name">{name}</b>,
      <Sentence key="after" text={text.slice(at + quoted.length)} />,
    ];
  }
  return [<Sentence key="all" text={text} />];
}
