/** What the run is, how it is, what it waits for, in that order. */
import { Link } from "@tanstack/react-router";
import { duration } from "../format/durations";
import { shortId, shortVersion } from "../format/ids";
import { count, percent, plural } from "../format/numbers";
import { ms, utcOffset } from "../format/times";
import { Icon, StatusMark, type StatusWord } from "../parts/icons";
import { brief } from "../parts/Payload";
import { Sentence } from "../parts/Sentence";
import { Status } from "../parts/Status";
import { Time } from "../parts/Time";
import { Acts } from "./Acts";
import { useRunView } from "./context";
import { useChildren, useCurrentVersion, useUsual } from "./data";
import type { Counts, Run } from "./types";
import { parts, queuedWords, unnamed, waitIcon } from "./waits";

/** Unread messages that are named beside the run. */
const UNREAD_NAMED = 3;

export function Head({ requested, onRequest }: { requested: string | null; onRequest: (word: string | null) => void }) {
  const { run } = useRunView();
  return (
    <section className="head" aria-label="Run">
      <div className="head-line">
        <Status status={run.status} pill word={requested ?? (run.paused_at ? "Paused" : undefined)} />
        <h1 className="clip">{run.workflow}</h1>
        <span className="grow" />
        <Acts onRequest={onRequest} />
      </div>
      <Waiting />
      <Facts />
    </section>
  );
}

function Waiting() {
  const { run, active, timeline } = useRunView();
  if (run.status === "failed" && run.error) return <FailedBecause run={run} />;
  const waiting = run.waiting;
  if (!active || !waiting?.reason) return null;
  const others = unnamed(waiting);
  return (
    <div className="waiting" role="status">
      <Icon name={waitIcon(waiting.on)} size={14} />
      <span className="eyebrow">Waiting on</span>
      <p>
        {parts(waiting, run.id).map((part, n) =>
          part.href ? (
            // biome-ignore lint/suspicious/noArrayIndexKey: parts of a sentence
            <Link key={n} to={part.href as never} className={`link ${part.mono ? "mono" : ""}`} title={part.text}>
              {/^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(part.text) ? shortId(part.text) : part.text}
            </Link>
          ) : (
            // biome-ignore lint/suspicious/noArrayIndexKey: parts of a sentence
            <Sentence key={n} text={part.text} />
          ),
        )}
        {others.length > 0 && (
          <>
            {". Held by "}
            {others.map((id, n) => (
              <span key={id}>
                {n > 0 && ", "}
                <RunLink id={id} />
              </span>
            ))}
          </>
        )}
        .{queuedWords(waiting, timeline?.counts.pending ?? 0)}
      </p>
    </div>
  );
}

function FailedBecause({ run }: { run: Run }) {
  return (
    <div className="waiting failed-because" role="status">
      <Icon name="warn" size={14} />
      <span className="eyebrow">{run.error?.type || run.error?.code}</span>
      <p className="clip" title={run.error?.message}>
        {brief(run.error?.message ?? "", 300)}
      </p>
    </div>
  );
}

export function RunLink({ id, label }: { id: string; label?: string }) {
  return (
    <Link to={`/runs/${encodeURIComponent(id)}` as never} className="link" title={id}>
      {label && <>{label} </>}
      <span className="mono">{shortId(id)}</span>
    </Link>
  );
}

function Facts() {
  const { run, now } = useRunView();
  const usual = useUsual(run.workflow).data;
  const current = useCurrentVersion(run.workflow).data;
  const took = ((run.finished_at ? ms(run.finished_at) : (now ?? Date.now())) - ms(run.created_at)) / 1000;
  const late = usual?.p95_s != null && took > usual.p95_s;
  return (
    <dl className="facts">
      <Fact name="Duration">
        <b>{duration(took)}</b> {late && <span className="tag attention">p95 {duration(usual?.p95_s)}</span>}
      </Fact>
      <Fact name="Started">
        <Time at={run.created_at} /> <span className="faint">{utcOffset(run.created_at)}</span>
      </Fact>
      <Fact name="Version">
        <Link
          to={`/workflows/${encodeURIComponent(run.workflow)}` as never}
          search={{ version: run.version } as never}
          className="link mono"
          title={run.version}
        >
          {shortVersion(run.version)}
        </Link>{" "}
        {current && <span className="faint">{current === run.version ? "latest" : "not the latest"}</span>}
      </Fact>
      <Relatives />
      <Attributes run={run} />
      <Unread run={run} />
      <Progress />
    </dl>
  );
}

function Fact({ name, children, className }: { name: string; children: React.ReactNode; className?: string }) {
  return (
    <div className={className}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Messages that were acknowledged and that the run has not read. */
function Unread({ run }: { run: Run }) {
  if (run.unread.length === 0) return null;
  return (
    <Fact name="Unread messages">
      <span className="tag attention" title={run.unread.map(unreadWords).join("\n")}>
        {run.unread.slice(0, UNREAD_NAMED).map(unreadWords).join(", ")}
        {run.unread.length > UNREAD_NAMED && ` and ${run.unread.length - UNREAD_NAMED} more`}
      </span>
    </Fact>
  );
}

function unreadWords(message: Run["unread"][number]): string {
  const what = message.name ? `${message.kind} ${message.name}` : message.kind;
  return message.set_aside ? `${what}, set aside` : `${what}, pending`;
}

function Relatives() {
  const { run } = useRunView();
  const children = useChildren(run.id).data;
  const first = children?.items[0];
  const many = children && (children.items.length > 1 || children.next);
  return (
    <>
      {run.parent_id && (
        <Fact name="Parent">
          <RunLink id={run.parent_id} />
        </Fact>
      )}
      {first && (
        <Fact name={many ? "Children" : "Child"} className="hide-narrow">
          {many ? (
            <Link to={"/runs" as never} search={{ q: `parent = "${run.id}"` } as never} className="link">
              {children.next ? `${children.items.length}+` : plural(children.items.length, "run")}
            </Link>
          ) : (
            <RunLink id={first.id} label={first.workflow} />
          )}
        </Fact>
      )}
      {run.forked_from && (
        <Fact name={`Forked after event ${run.forked_at ?? ""}`}>
          <RunLink id={run.forked_from} />
        </Fact>
      )}
      {run.rerun_of && (
        <Fact name="Rerun of">
          <RunLink id={run.rerun_of} />
        </Fact>
      )}
      {run.successor && (
        <Fact name="Continued as">
          <RunLink id={run.successor} />
        </Fact>
      )}
    </>
  );
}

const TAGS_SHOWN = 4;

function Attributes({ run }: { run: Run }) {
  const all = Object.entries(run.attributes ?? {});
  if (all.length === 0) return null;
  const rest = all.slice(TAGS_SHOWN);
  return (
    <Fact name="Attributes" className={run.parent_id ? "hide-narrow" : undefined}>
      {all.slice(0, TAGS_SHOWN).map(([name, value]) => (
        <span key={name} className="tag" title={`${name}: ${String(value)}`}>
          {brief(`${name} ${String(value)}`, 28)}
        </span>
      ))}
      {rest.length > 0 && (
        <span className="tag" title={rest.map(([k, v]) => `${k}: ${String(v)}`).join("\n")}>
          +{rest.length}
        </span>
      )}
    </Fact>
  );
}

const SHOWN: StatusWord[] = ["success", "failed", "running", "dispatched", "pending", "skipped", "cancelled"];
const ENDED: StatusWord[] = ["success", "failed", "skipped", "cancelled"];

function Progress() {
  const { run, timeline } = useRunView();
  const counts: Counts = timeline && timeline.total > 0 ? timeline.counts : (run.tasks as Counts);
  const shown = SHOWN.filter((s) => counts[s]);
  const total = shown.reduce((sum, s) => sum + (counts[s] ?? 0), 0);
  if (total === 0) return null;
  const done = ENDED.reduce((sum, s) => sum + (counts[s] ?? 0), 0);
  return (
    <div className="facts-tasks">
      <dt>
        {plural(total, "task")}, {percent(done, total)} done
      </dt>
      <dd>
        <div className="prog" role="img" aria-label={shown.map((s) => `${counts[s]} ${s}`).join(", ")}>
          {shown.map((s) => (
            <i key={s} style={{ flexGrow: counts[s], background: `var(--${s}-mark)` }} />
          ))}
        </div>
        <div className="prog-n">
          {shown.map((s) => (
            <span key={s} className={`st st-${s}`}>
              <StatusMark status={s} />
              {count(counts[s])} {s}
            </span>
          ))}
        </div>
      </dd>
    </div>
  );
}
