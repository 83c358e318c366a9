/** One run: answered first, then looked at in six ways that share one selection. */
import { useParams } from "@tanstack/react-router";
import { lazy, Suspense, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { ApiError } from "../api/client";
import { shortId } from "../format/ids";
import { count } from "../format/numbers";
import { ms } from "../format/times";
import { Copy } from "../parts/Copy";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Tabs } from "../parts/Tabs";
import { useNow } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useUrl } from "../shell/url";
import { RunProvider, type RunView } from "./context";
import { isActive, type OpenTasks, useOpenTasks, useRun, useStates, useTimeline } from "./data";
import { Head } from "./Head";
import { HistoryTab } from "./HistoryTab";
import { IoTab } from "./IoTab";
import { LogsTab } from "./LogsTab";
import { useLiveRun } from "./live";
import { Panel } from "./panel/Panel";
import { isFan, nextFailed, type Row, rowsOf, selectionOf, stepFrom } from "./rows";
import { StateTab } from "./StateTab";
import { firstLook, readSelection, type Selection, writeSelection } from "./selection";
import { inPlace, type Open, readOpen, SHOWN_FIRST, writeOpen } from "./stable";
import { TimelineTab } from "./TimelineTab";
import { type Run, TABS, type TabId, type Timeline, type TimelineNode } from "./types";
import "./run.css";

const GraphTab = lazy(() => import("./GraphTab").then((m) => ({ default: m.GraphTab })));

export function RunPage() {
  const { id } = useParams({ strict: false }) as { id: string };
  const run = useRun(id);
  // Asked for together with the run: one after the other would be two round trips before the first row.
  useTimeline(id);
  if (!run.data)
    return (
      <>
        <TopBar
          title="Run"
          crumbs={[{ label: "Runs", href: "/runs" }, { label: <span className="mono">{shortId(id)}</span> }]}
        />
        {run.error ? <NotThere error={run.error} id={id} retry={() => void run.refetch()} /> : <Skeleton rows={12} />}
      </>
    );
  return <Loaded key={run.data.id} name={id} run={run.data} />;
}

function NotThere({ error, id, retry }: { error: Error; id: string; retry: () => void }) {
  if (error instanceof ApiError && error.status === 404)
    return (
      <Empty title="No such run" command="perdure list">
        There is no run {shortId(id)} in this namespace. It may have been deleted after its retention, or be in another
        namespace.
      </Empty>
    );
  return <Failed error={error} retry={retry} />;
}

function Loaded({ name, run }: { name: string; run: Run }) {
  const view = useView(name, run);
  const [requested, setRequested] = useRequested(run);
  const title = run.key ?? shortId(run.id);
  return (
    <RunProvider value={view}>
      <TopBar
        title={`${run.workflow} · ${title}`}
        ownHeading
        crumbs={[
          { label: "Runs", href: "/runs" },
          { label: run.workflow, href: `/workflows/${encodeURIComponent(run.workflow)}` },
          { label: <span className="mono">{title}</span> },
        ]}
        beside={
          <span className="hide-narrow">
            <Copy text={run.id} label={`Copy run id ${run.id}`} />
          </span>
        }
      />
      <Head requested={requested} onRequest={setRequested} />
      <Views view={view} />
    </RunProvider>
  );
}

/** What was asked of the run, until it has happened. */
function useRequested(run: Run): [string | null, (word: string | null) => void] {
  const [requested, setRequested] = useState<string | null>(null);
  const ended = !isActive(run);
  useEffect(() => {
    if (ended) setRequested(null);
  }, [ended]);
  return [requested, setRequested];
}

function Views({ view }: { view: RunView }) {
  const url = useUrl();
  const rows = useMemo(() => rowsOf(view.timeline?.nodes ?? [], view.tasks), [view.timeline, view.tasks]);
  const states = useStates(view.name, view.tab === "state").data;
  const go = useCallback((id: string) => url.set({ tab: id === "timeline" ? null : id }), [url]);
  useRunKeys(view, rows, go);
  const events = Math.max(view.run.events, view.live.fresh.at(-1)?.seq ?? 0);
  return (
    <>
      <Tabs
        label="Views of this run"
        value={view.tab}
        onChange={go}
        tabs={[
          { id: "timeline", label: "Timeline" },
          { id: "graph", label: "Graph" },
          {
            id: "history",
            label: (
              <>
                History <span className="count">{count(events)}</span>
              </>
            ),
          },
          { id: "logs", label: "Logs" },
          { id: "io", label: "Input and output" },
          {
            id: "state",
            label: (
              <>
                State {states && states.items.length > 0 && <span className="count">{count(states.items.length)}</span>}
              </>
            ),
          },
        ]}
      />
      <div className="body">
        <div className="panes">
          <section className="pane" id={`panel-${view.tab}`} role="tabpanel" aria-labelledby={`tab-${view.tab}`}>
            <Pane tab={view.tab} rows={rows} />
          </section>
        </div>
        <Panel />
      </div>
    </>
  );
}

function Pane({ tab, rows }: { tab: TabId; rows: Row[] }) {
  switch (tab) {
    case "graph":
      return (
        <Suspense fallback={<Skeleton rows={6} height={60} />}>
          <GraphTab />
        </Suspense>
      );
    case "history":
      return <HistoryTab />;
    case "logs":
      return <LogsTab />;
    case "io":
      return <IoTab />;
    case "state":
      return <StateTab />;
    default:
      return <TimelineTab rows={rows} />;
  }
}

function useView(name: string, run: Run): RunView {
  const url = useUrl();
  const active = isActive(run);
  const query = useTimeline(name);
  const timeline = query.data;
  const live = useLiveRun(run.id, run.events);
  const clock = useNow(active);
  // The server's clock: how far it is from this machine's is known from when its answer came.
  const skew = timeline && !timeline.ended ? ms(timeline.to) - query.dataUpdatedAt : 0;
  const now = active ? clock + skew : null;
  const openText = url.get("open");
  const open = useMemo(() => readOpen(openText) ?? defaultOpen(timeline), [openText, timeline]);
  const tasks = useSteady(useOpenTasks(name, open, active));
  const chosen = url.get("task");
  const selection = useMemo(() => readSelection(chosen) ?? implicit(timeline, tasks), [chosen, timeline, tasks]);
  const node = timeline?.nodes.find((n) => n.node === selection?.node) ?? null;
  const tabText = url.get("tab");
  const tab = TABS.find((t) => t === tabText) ?? "timeline";
  const { set } = url;
  const select = useCallback((s: Selection) => set({ task: writeSelection(s) }), [set]);
  const setOpen = useCallback((o: Open[]) => set({ open: writeOpen(o) }), [set]);
  return useMemo(
    () => ({
      name,
      run,
      timeline,
      timelineError: query.error,
      retryTimeline: () => void query.refetch(),
      active,
      now,
      live,
      selection,
      node,
      select,
      open,
      setOpen,
      tasks,
      tab,
    }),
    [
      name,
      run,
      timeline,
      query.error,
      query.refetch,
      active,
      now,
      live,
      selection,
      node,
      select,
      open,
      setOpen,
      tasks,
      tab,
    ],
  );
}

/** The fan-out that a person would open first: one that failed or is at work. */
function defaultOpen(timeline: Timeline | undefined): Open[] {
  const fans = timeline?.nodes.filter(isFan) ?? [];
  const found = fans.find((n) => n.status === "failed") ?? fans.find((n) => !n.finished_at && n.status !== "pending");
  return found ? [{ node: found.node, status: null, shown: SHOWN_FIRST }] : [];
}

function implicit(timeline: Timeline | undefined, tasks: OpenTasks[]): Selection | null {
  const node: TimelineNode | undefined = firstLook(timeline?.nodes ?? []);
  if (!node) return null;
  const first = isFan(node) ? tasks.find((t) => t.open.node === node.node)?.items[0] : undefined;
  return { node: node.node, seq: first?.seq ?? null };
}

/** Rows of open fan-outs stay where they are while their values change. */
function useSteady(tasks: OpenTasks[]): OpenTasks[] {
  const shown = useRef(new Map<string, OpenTasks["items"]>());
  return useMemo(() => {
    const next = new Map<string, OpenTasks["items"]>();
    const out = tasks.map((t) => {
      const key = `${t.open.node}:${t.open.status ?? ""}`;
      const items = inPlace(shown.current.get(key) ?? [], t.items, (task) => task.seq);
      next.set(key, items);
      return { ...t, items };
    });
    shown.current = next;
    return out;
  }, [tasks]);
}

function useRunKeys(view: RunView, rows: Row[], go: (tab: string) => void): void {
  const url = useUrl();
  const move = (at: number) => {
    const found = rows[at] && selectionOf(rows[at]);
    if (found) view.select(found);
  };
  const back = () => (url.get("task") ? url.set({ task: null, line: null }) : history.length > 1 && history.back());
  useKeys({
    j: () => move(stepFrom(rows, view.selection, 1)),
    k: () => move(stepFrom(rows, view.selection, -1)),
    n: () => move(nextFailed(rows, view.selection)),
    Escape: back,
    ...Object.fromEntries(TABS.map((tab, n) => [String(n + 1), () => go(tab)])),
  });
}
