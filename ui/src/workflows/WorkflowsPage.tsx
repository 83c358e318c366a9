/** All workflows of the namespace. */
import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import type { Schemas } from "../api/client";
import { useSession } from "../api/session";
import { useEvents, useTopic } from "../api/stream";
import { duration } from "../format/durations";
import { shortVersion } from "../format/ids";
import { count } from "../format/numbers";
import { Icon } from "../parts/icons";
import { Empty, Failed, Skeleton } from "../parts/states";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useGo, useUrl } from "../shell/url";
import { type Pause, runsHref, type UsualDuration, useDurations, usePauses, useWorkflows, workflowHref } from "./data";
import { FlowEditor } from "./editor/FlowEditor";
import "./workflow.css";

const TYPING_MS = 250;
const REFRESH_MS = 5000;

export function WorkflowsPage() {
  const url = useUrl();
  return url.get("new") === null ? <List /> : <NewFlow />;
}

function NewFlow() {
  const { may } = useSession();
  const go = useGo();
  return (
    <>
      <TopBar title="New flow" crumbs={[{ label: "Workflows", href: "/workflows" }, { label: "New flow" }]} />
      {may("develop") ? (
        <FlowEditor name={null} version="" published="" onPublished={(name) => go(workflowHref(name))} />
      ) : (
        <Empty title="This session may not publish flows">
          It needs the permission <code>develop</code>. An administrator can make a key that has it.
        </Empty>
      )}
    </>
  );
}

function List() {
  const url = useUrl();
  const { may } = useSession();
  const q = url.get("q") ?? "";
  const workflows = useWorkflows(q);
  useFreshList();
  useRowKeys();
  const rows = workflows.data?.pages.flatMap((page) => page.items);
  return (
    <>
      <TopBar title="Workflows">
        {may("develop") && (
          <Link className="btn" to={"/workflows?new=flow" as never}>
            <Icon name="plus" />
            New flow
          </Link>
        )}
      </TopBar>
      <div className="wf-bar">
        <Search value={q} onChange={(next) => url.set({ q: next })} />
      </div>
      {workflows.error && !rows && <Failed error={workflows.error} retry={() => void workflows.refetch()} />}
      {!rows && !workflows.error && <Skeleton rows={12} />}
      {rows?.length === 0 && <Nothing q={q} clear={() => url.set({ q: null })} />}
      {rows && rows.length > 0 && (
        <div className={`pane scroll ${workflows.isPlaceholderData ? "stale" : ""}`}>
          <Table rows={rows} />
          {workflows.hasNextPage && (
            <p className="more-page">
              <button
                type="button"
                className="btn"
                disabled={workflows.isFetchingNextPage}
                onClick={() => void workflows.fetchNextPage()}
              >
                {workflows.isFetchingNextPage ? "Loading…" : "Show more"}
              </button>
            </p>
          )}
        </div>
      )}
    </>
  );
}

function Nothing({ q, clear }: { q: string; clear: () => void }) {
  if (q)
    return (
      <Empty
        title={`No workflow has “${q}” in its name`}
        action={
          <button type="button" className="btn" onClick={clear}>
            Show all
          </button>
        }
      />
    );
  return (
    <Empty
      title="No workflow yet"
      command="perdure init"
      action={
        <p className="command">
          <code>perdure deploy flow.yaml</code>
        </p>
      }
    >
      A workflow appears here when a worker that has its code connects, or when a flow is deployed.{" "}
      <code>perdure init</code> writes a first one of each kind.
    </Empty>
  );
}

function Search({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  const input = useRef<HTMLInputElement>(null);
  const sent = useRef(value);
  useKeys({ f: () => input.current?.focus(), "/": () => input.current?.focus() });
  // From outside: the back button, or "Show all".
  useEffect(() => {
    if (value !== sent.current) {
      sent.current = value;
      setText(value);
    }
  }, [value]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: only typing sends
  useEffect(() => {
    if (text === sent.current) return;
    const timer = setTimeout(() => {
      sent.current = text;
      onChange(text);
    }, TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label className="wf-search">
      <Icon name="search" size={14} />
      <input
        ref={input}
        type="search"
        aria-label="Search workflows by name"
        placeholder="Search by name"
        maxLength={200}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => event.key === "Escape" && input.current?.blur()}
      />
      <kbd className="hide-narrow">f</kbd>
    </label>
  );
}

function Table({ rows }: { rows: Schemas["WorkflowSummary"][] }) {
  const durations = useDurations();
  const pauses = usePauses();
  return (
    <table className="grid workflows">
      <thead>
        <tr>
          <th>Workflow</th>
          <th>Kind</th>
          <th>Version</th>
          <th className="num">Versions</th>
          <th className="num">Active runs</th>
          <th className="num">p50</th>
          <th className="num">p95</th>
          <th className="num">Runs, 7 days</th>
          <th>
            <span className="sr">Acts</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <Row
            key={row.name}
            row={row}
            usual={durations.data?.get(row.name)}
            pause={pauses.data?.get(row.name) ?? null}
          />
        ))}
      </tbody>
    </table>
  );
}

function Row(props: { row: Schemas["WorkflowSummary"]; usual: UsualDuration | undefined; pause: Pause | null }) {
  const { row, usual, pause } = props;
  const { may } = useSession();
  return (
    <tr>
      <td className="wf-what">
        <Link className="wf-name strong" to={workflowHref(row.name) as never}>
          {row.name}
        </Link>
        {pause && (
          <span className="tag attention" title={pause.reason ?? undefined}>
            paused
          </span>
        )}
        {row.description && <span className="faint clip">{row.description}</span>}
      </td>
      <td className="muted">{row.kind}</td>
      <td className="mono" title={row.version}>
        {shortVersion(row.version)}
      </td>
      <td className="num muted">{count(row.versions)}</td>
      <td className="num">
        {row.runs_active > 0 ? (
          <Link className="link" to={runsHref(row.name, ["status in (pending, running)"]) as never}>
            {count(row.runs_active)}
          </Link>
        ) : (
          <span className="faint">0</span>
        )}
      </td>
      <td className="num">{duration(usual?.p50_s)}</td>
      <td className="num muted">{duration(usual?.p95_s)}</td>
      <td className="num muted">{count(usual?.runs ?? 0)}</td>
      <td className="num acts-cell">
        {may("start") && (
          <Link
            className="btn ghost sm"
            aria-label={`Start a run of ${row.name}`}
            to={`/runs?start=${encodeURIComponent(row.name)}` as never}
          >
            <Icon name="play" size={14} />
            Start
          </Link>
        )}
      </td>
    </tr>
  );
}

/** j and k move along the names; Enter opens, as on any link. */
function useRowKeys(): void {
  const move = (by: number) => {
    const all = [...document.querySelectorAll<HTMLElement>(".wf-name")];
    const at = all.indexOf(document.activeElement as HTMLElement);
    all.at(at < 0 ? (by > 0 ? 0 : -1) : Math.min(Math.max(at + by, 0), all.length - 1))?.focus();
  };
  useKeys({ j: () => move(1), k: () => move(-1) });
}

/** Counts of active runs follow events, at most every five seconds. */
function useFreshList(): void {
  const client = useQueryClient();
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useTopic("runs");
  useEvents("run", () => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      void client.invalidateQueries({ queryKey: ["workflows"] });
    }, REFRESH_MS);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
}
