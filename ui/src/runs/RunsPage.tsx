/** The list of runs. The query is the state; chips, brush, saved views and the table follow it, and all of it is in the URL. */
import "./runs.css";
import { type ReactNode, type RefObject, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useSession } from "../api/session";
import { useViews } from "../api/views";
import { count, plural } from "../format/numbers";
import { Icon } from "../parts/icons";
import { Empty, Skeleton } from "../parts/states";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useGo, useUrl } from "../shell/url";
import { Activity } from "./Activity";
import { BulkBar } from "./BulkBar";
import { BulkDialog } from "./BulkDialog";
import { BulkProgress } from "./BulkProgress";
import { isEmpty } from "./bulk";
import { readColumns } from "./columns";
import type { BulkAction } from "./data";
import { Foot } from "./Foot";
import { ListBody } from "./ListBody";
import { GATHERED_MAX } from "./live";
import type { RunSummary } from "./matching";
import { QueryBar } from "./QueryBar";
import { RunTable } from "./RunTable";
import { ANY_WORKFLOW, StartDialog } from "./StartDialog";
import { useRowFacts } from "./useRowFacts";
import { type Runs, useRuns } from "./useRuns";
import { useSelection } from "./useSelection";
import { ViewPills } from "./ViewPills";

/** The query text: the URL's, or that of the view that the URL names. Null while the view is not known. */
function useQueryText(): { text: string | null; view: string | null; isMissing?: boolean } {
  const url = useUrl();
  const views = useViews();
  const [q, view] = [url.get("q"), url.get("view")];
  if (q !== null || !view) return { text: q ?? "", view: null };
  const found = views.data?.find((one) => one.name === view);
  if (found) return { text: found.query, view };
  return { text: null, view, isMissing: !views.isPending };
}

export function RunsPage() {
  const url = useUrl();
  const { may } = useSession();
  const { text, view, isMissing } = useQueryText();
  const start = url.get("start");
  const setText = useCallback(
    (next: string, how?: { push?: boolean }) => url.set({ q: next.trim() ? next : null, view: null }, how),
    [url.set],
  );
  const pills = (className?: string) => (
    <ViewPills
      className={className}
      text={text ?? ""}
      current={view}
      onPick={(one) => url.set({ q: null, view: one?.name }, { push: true })}
    />
  );
  return (
    <>
      <TopBar title="Runs" beside={pills()}>
        {may("start") && (
          <button type="button" className="btn primary" onClick={() => url.set({ start: ANY_WORKFLOW })}>
            <Icon name="plus" />
            Start run
          </button>
        )}
      </TopBar>
      {text !== null && <RunList text={text} onText={setText} narrowPills={pills("only-narrow")} />}
      {text === null && !isMissing && <Skeleton />}
      {isMissing && (
        <Empty
          title={`There is no view named ${view}`}
          command="perdure view list"
          action={
            <button type="button" className="btn" onClick={() => url.set({ view: null })}>
              All runs
            </button>
          }
        >
          It may have been deleted, or it belongs to another namespace.
        </Empty>
      )}
      {start && may("start") && (
        <StartDialog
          workflow={start}
          onWorkflow={(name) => url.set({ start: name })}
          onClose={() => url.set({ start: null })}
        />
      )}
    </>
  );
}

function RunList(props: {
  text: string;
  onText: (text: string, how?: { push?: boolean }) => void;
  narrowPills: ReactNode;
}) {
  const { text, onText } = props;
  const url = useUrl();
  const go = useGo();
  const { may } = useSession();
  const canOperate = may("operate");
  const runs = useRuns(text);
  const facts = useRowFacts(runs.rows);
  const box = useRef<HTMLInputElement>(null);
  const scroll = useRef<HTMLElement>(null);
  const attributes = useMemo(() => attributeNames(runs), [runs]);
  const columns = useMemo(() => readColumns(url.get("columns")), [url.get]);
  const selecting = useSelection(text, runs, canOperate);
  const { selection } = selecting;
  const [acting, setActing] = useState<BulkAction | null>(null);
  const [at, setAt] = useState<string | null>(null);
  const open = useCallback((run: RunSummary) => go(`/runs/${run.id}`), [go]);
  const job = url.get("job");

  const ids = runs.rows.map((row) => row.run.id);
  const step = (by: number) => {
    const here = at ? ids.indexOf(at) : -1;
    const next = ids[Math.max(0, Math.min(ids.length - 1, here + by))];
    if (next) setAt(next);
    if (next) focusRow(scroll.current, next, ids.indexOf(next));
    if (here + by >= ids.length - 1) runs.loadMore();
  };
  const leave = () => {
    if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
    selecting.clear();
  };
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    ...(canOperate && {
      x: () => at && selecting.toggle(at),
      "shift+x": () => selecting.all(),
    }),
    f: () => box.current?.select(),
    Escape: leave,
  });
  useEnter(() => {
    const run = runs.rows.find((row) => row.run.id === at)?.run;
    if (run) open(run);
  });

  return (
    <>
      <QueryBar text={text} onChange={onText} error={runs.error} attributes={attributes} input={box} />
      <div className="only-narrow narrow-views">{props.narrowPills}</div>
      <Activity text={text} onChange={(next) => onText(next, { push: true })} />
      <section className={`list scroll ${runs.stale ? "stale" : ""}`} aria-label="Runs" ref={scroll}>
        {runs.newRuns > 0 && <NewPill n={runs.newRuns} onClick={() => showNew(runs, scroll.current)} />}
        <ListBody text={text} runs={runs} onClear={() => onText("", { push: true })}>
          <RunTable
            rows={runs.rows}
            columns={columns}
            facts={facts}
            scroll={scroll}
            at={at}
            selected={selection.ids}
            allSelected={selection.all}
            onPick={canOperate ? selecting.pick : undefined}
            onPickAll={selecting.loaded}
            onAt={setAt}
            onOpen={open}
            watch={runs.watch}
          />
          {runs.more && <LoadMore runs={runs} list={scroll} />}
        </ListBody>
      </section>
      {canOperate && !isEmpty(selection) && (
        <BulkBar
          selection={selection}
          request={runs.request}
          onAll={selecting.all}
          onClear={selecting.clear}
          onAct={setActing}
        />
      )}
      {job && isEmpty(selection) && (
        <BulkProgress id={job} onClose={() => url.set({ job: null })} onProgress={runs.refreshShown} />
      )}
      <Foot runs={runs} attributes={attributes} columns={columns.map((column) => column.id)} canOperate={canOperate} />
      {acting && (
        <BulkDialog
          action={acting}
          selection={selection}
          request={runs.request}
          onClose={() => setActing(null)}
          onStarted={(started) => {
            setActing(null);
            selecting.clear();
            url.set({ job: started.id });
          }}
        />
      )}
    </>
  );
}

/** Names of attributes of the loaded runs, to be offered as filters and columns. */
function attributeNames(runs: Runs): string[] {
  const names = new Set<string>();
  for (const row of runs.rows) for (const name of Object.keys(row.run.attributes ?? {})) names.add(name);
  return [...names].sort().slice(0, 50);
}

/** The table may have to bring the row into the page first. */
function focusRow(list: HTMLElement | null, id: string, index: number): void {
  const found = () => list?.querySelector<HTMLElement>(`a[data-run="${CSS.escape(id)}"]`);
  const link = found();
  if (link) {
    link.focus({ preventScroll: true });
    link.closest("tr")?.scrollIntoView({ block: "nearest" });
    return;
  }
  const rows = list?.querySelectorAll<HTMLElement>("tbody tr:not(.gap)");
  list?.scrollTo({ top: index * (rows?.[0]?.offsetHeight ?? 32) });
  setTimeout(() => found()?.focus(), 50);
}

function showNew(runs: Runs, list: HTMLElement | null): void {
  runs.showNew();
  list?.scrollTo({ top: 0 });
  // The stream does not say what they wait for.
  setTimeout(runs.refreshShown, 300);
}

/** Enter opens the marked row when no control has the focus; one that has it takes Enter itself. */
function useEnter(open: () => void): void {
  const latest = useRef(open);
  latest.current = open;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const idle = event.target === document.body || (event.target as HTMLElement).id === "main";
      if (event.key === "Enter" && idle && !document.querySelector("dialog[open]")) latest.current();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
}

/** How far below the screen the end of the list is when the next page is asked for. */
const AHEAD_PX = 600;

function LoadMore({ runs, list }: { runs: Runs; list: RefObject<HTMLElement | null> }) {
  const end = useRef<HTMLParagraphElement>(null);
  const { loadMore, loadingMore } = runs;
  // Observed anew after each page: one that brought little leaves the end in sight.
  // biome-ignore lint/correctness/useExhaustiveDependencies: see above
  useEffect(() => {
    const observer = new IntersectionObserver(([seen]) => seen?.isIntersecting && loadMore(), {
      root: list.current,
      rootMargin: `${AHEAD_PX}px`,
    });
    if (end.current) observer.observe(end.current);
    return () => observer.disconnect();
  }, [loadMore, loadingMore, list]);
  return (
    <p className="more-runs" ref={end}>
      <button type="button" className="btn sm" disabled={loadingMore} onClick={loadMore}>
        {loadingMore ? "Loading…" : "Load more"}
      </button>
    </p>
  );
}

function NewPill({ n, onClick }: { n: number; onClick: () => void }) {
  return (
    <button type="button" className="newpill" onClick={onClick} aria-live="polite">
      <Icon name="up" size={12} />
      {n > GATHERED_MAX ? `${count(GATHERED_MAX)}+ new runs` : `${plural(n, "new run")}`}
    </button>
  );
}
