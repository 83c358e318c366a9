/** Workers and queues: what waits and for how long, who works, and what is in the way. */
import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { useSession } from "../api/session";
import { duration, roughly } from "../format/durations";
import { count, plural } from "../format/numbers";
import { useLimits, useRules } from "../limits/data";
import { HoldBar, HolderLink, heldText } from "../limits/parts";
import { isFull as limitIsFull, pausedOf } from "../limits/rows";
import { showSelected } from "../parts/rows";
import { Status } from "../parts/Status";
import { Empty, Failed, Skeleton } from "../parts/states";
import { useNow } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useUrl } from "../shell/url";
import { useQueues, useSamples, useWorkers } from "./data";
import { QueueTable, Slots } from "./QueueTable";
import { alarms, queuesOf, type Worker, workersInOrder } from "./queues";
import { WorkerPanel } from "./WorkerPanel";
import "./workers.css";

const SILENT_S = 30;
const START = "perdure worker --url http://127.0.0.1:8600 my_module";

export function WorkersPage() {
  const url = useUrl();
  const { namespace } = useSession();
  const depths = useQueues();
  const workers = useWorkers();
  const limits = useRules();
  const all = useMemo(() => workersInOrder(workers.data?.items ?? []), [workers.data]);
  const queues = useMemo(() => {
    if (!depths.data || !workers.data) return undefined;
    const paused = pausedOf(limits.data ?? []).filter((i) => i.scope === "queue");
    return queuesOf(depths.data, workers.data.items, new Map(paused.map((i) => [i.name ?? "", i.pause_reason ?? ""])));
  }, [depths.data, workers.data, limits.data]);
  const samples = useSamples(queues, depths.dataUpdatedAt, namespace);
  const asked = url.get("id");
  const selected = all.find((w) => w.id === asked) ?? (asked ? undefined : all[0]);
  const step = (by: number) => {
    const at = all.findIndex((w) => w.id === selected?.id);
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    if (!next) return;
    url.set({ id: next.id });
    showSelected();
  };
  useKeys({ j: () => step(1), k: () => step(-1) });
  return (
    <>
      <TopBar title="Workers and queues" />
      <div className="split work">
        <div className={`scroll ${depths.isError && depths.data ? "stale" : ""}`}>
          <section aria-label="Queues">
            <div className="sec">
              <h2>Queues</h2>
              {queues && <span className="count">{count(queues.length)}</span>}
              <span className="grow" />
              {alarms(queues ?? [])
                .slice(0, 4)
                .map((alarm) => (
                  <span key={alarm.text} className={`tag ${alarm.kind}`}>
                    {alarm.text}
                  </span>
                ))}
            </div>
            {depths.error && !depths.data ? (
              <Failed error={depths.error} retry={() => void depths.refetch()} />
            ) : queues ? (
              <QueueTable queues={queues} samples={samples} />
            ) : (
              <Skeleton rows={5} />
            )}
          </section>
          <section aria-label="Workers">
            <div className="sec sec-next">
              <h2>Workers</h2>
              {workers.data && (
                <span className="count">
                  {count(all.length)}
                  {workers.data.next ? "+" : ""} connected
                </span>
              )}
              <span className="grow" />
              <span className="faint hide-narrow">blocked first, then busiest</span>
            </div>
            {workers.error && !workers.data ? (
              <Failed error={workers.error} retry={() => void workers.refetch()} />
            ) : !workers.data ? (
              <Skeleton rows={5} />
            ) : all.length === 0 ? (
              <Empty title="No worker is connected" command={START}>
                Tasks wait until a worker that serves their queue connects. Workers run your code and hold one stream to
                the server.
              </Empty>
            ) : (
              <WorkerTable workers={all} selected={selected?.id ?? null} onSelect={(id) => url.set({ id })} />
            )}
          </section>
          <LimitSummary />
        </div>
        {selected ? (
          <WorkerPanel key={selected.id} worker={selected} />
        ) : (
          <aside className="wp" aria-label="Worker">
            {asked && workers.data && (
              <Empty title="This worker is not connected">It may have ended or reconnected under another id.</Empty>
            )}
          </aside>
        )}
      </div>
    </>
  );
}

export function WorkerState({ worker, now }: { worker: Worker; now: number }) {
  if (worker.blocked) return <Status status="failed" word="Blocked" />;
  if (worker.draining) return <Status status="cancelled" word="Draining" />;
  if (now - Date.parse(worker.seen_at) > SILENT_S * 1000) return <Status status="pending" word="Silent" />;
  return <Status status="success" word="Healthy" />;
}

/** "perdure-python 0.1.0" is 0.1.0. */
function sdkVersion(worker: Worker): string {
  return worker.sdk.split(" ").at(-1) ?? worker.sdk;
}

function newest(workers: Worker[]): string {
  const number = (v: string) => v.split(/[.-]/).map((part) => Number(part) || 0);
  return workers.map(sdkVersion).sort((a, b) => {
    const [x, y] = [number(a), number(b)];
    for (let n = 0; n < 3; n += 1) if ((x[n] ?? 0) !== (y[n] ?? 0)) return (y[n] ?? 0) - (x[n] ?? 0);
    return 0;
  })[0] as string;
}

function WorkerTable(props: { workers: Worker[]; selected: string | null; onSelect: (id: string) => void }) {
  const now = useNow();
  const latest = newest(props.workers);
  return (
    // biome-ignore lint/a11y/noNoninteractiveElementToInteractiveRole: its rows can be selected, which only a grid may have
    <table className="grid worker-table" role="grid" aria-label="Workers">
      <thead>
        <tr>
          <th>Worker</th>
          <th>State</th>
          <th>Queues</th>
          <th>Slots</th>
          <th className="num">Heartbeat</th>
          <th className="num">Done / s</th>
          <th className="num">p95</th>
          <th>SDK</th>
        </tr>
      </thead>
      <tbody>
        {props.workers.map((worker) => {
          const isSelected = worker.id === props.selected;
          return (
            <tr
              key={worker.id}
              aria-selected={isSelected}
              onClick={(event) => !(event.target as Element).closest("a,button") && props.onSelect(worker.id)}
            >
              <td className="mono strong">
                <button type="button" aria-pressed={isSelected} onClick={() => props.onSelect(worker.id)}>
                  {worker.name}
                </button>
              </td>
              <td>
                <WorkerState worker={worker} now={now} />
              </td>
              <td className="clip queues-cell" title={worker.queues.join(", ")}>
                {worker.queues.join(", ")}
              </td>
              <td>
                <Slots used={worker.slots_used} all={worker.slots} />
              </td>
              <td className="num muted">{roughly((now - Date.parse(worker.seen_at)) / 1000)}</td>
              <td className="num muted">{(worker.per_s ?? 0).toFixed(worker.per_s && worker.per_s < 1 ? 2 : 1)}</td>
              <td className="num muted">{duration(worker.p95_s)}</td>
              <td className={sdkVersion(worker) === latest ? "muted" : "late"} title={worker.sdk}>
                {sdkVersion(worker)}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function LimitSummary() {
  const { rules, rows } = useLimits();
  return (
    <section aria-label="Limits">
      <div className="sec sec-next">
        <h2>
          <Link to={"/limits" as never}>Limits</Link>
        </h2>
        {rows && <span className="count">{count(rows.length)}</span>}
        <span className="grow" />
        <span className="faint hide-narrow">who holds what</span>
      </div>
      {rules.error && !rows ? (
        <Failed error={rules.error} retry={() => void rules.refetch()} />
      ) : !rows ? (
        <Skeleton rows={2} />
      ) : rows.length === 0 ? (
        <p className="faint sec-empty">
          No limits are set.{" "}
          <Link className="link" to={"/limits" as never}>
            Limit a queue, a workflow or a task
          </Link>
        </p>
      ) : (
        <table className="grid limit-table" aria-label="Limits">
          <thead>
            <tr>
              <th>Limit</th>
              <th>Kind</th>
              <th>Held by</th>
              <th>Most by</th>
              <th className="num">Held</th>
              <th className="num">Waiting</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id}>
                <td className="mono strong">{row.name}</td>
                <td className="muted">{row.kind}</td>
                <td className="hold-cell">
                  <HoldBar row={row} />
                </td>
                <td className="muted clip">{row.holders[0] ? <HolderLink holder={row.holders[0]} /> : "–"}</td>
                <td className={`num ${limitIsFull(row) ? "late" : ""}`}>{heldText(row)}</td>
                <td
                  className={`num ${row.waiting ? "late" : "muted"}`}
                  title={row.waiting ? plural(row.waiting, "waits", "wait") : undefined}
                >
                  {count(row.waiting)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
