/** Dead letters: tasks that failed for good, in runs that failed with them. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { shortId } from "../format/ids";
import { count, plural } from "../format/numbers";
import { FilterInput } from "../parts/FilterInput";
import { Icon } from "../parts/icons";
import { visible } from "../parts/Payload";
import { taskPage } from "../parts/rows";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useGo, useUrl } from "../shell/url";
import { command, type Filter, type FilterName, filterOf, isEmpty, words } from "./filter";
import { RetryDialog } from "./RetryDialog";
import "./dead-letters.css";

type DeadLetter = Schemas["DeadLetterInfo"];
const PAGE = 100;

export function DeadLettersPage() {
  const url = useUrl();
  const { may } = useSession();
  const filter = filterOf(url.get);
  const [chosen, setChosen] = useState<Set<string>>(new Set());
  const [at, setAt] = useState(-1);
  // The runs as they were when it was asked for: retried ones leave the list while the dialog still tells of them.
  const [retrying, setRetrying] = useState<{ runs?: string[] } | null>(null);
  const go = useGo();
  const query = useInfiniteQuery({
    queryKey: ["dead-letters", filter],
    queryFn: ({ pageParam }) =>
      body(
        api.GET("/api/v1/dead-letters", {
          params: { query: { ...filter, limit: PAGE, cursor: pageParam || undefined } },
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    refetchInterval: 10_000,
    placeholderData: (before) => before,
  });
  const all = query.data?.pages.flatMap((page) => page.items) ?? [];
  const runs = [...new Set(all.filter((d) => chosen.has(d.id)).map((d) => d.run_id))];
  const toggle = (id: string) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const move = (by: number) => {
    const next = Math.max(0, Math.min(all.length - 1, at + by));
    setAt(next);
    document.getElementById(`dead-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  const open = () => all[at] && go(pageOf(all[at]));
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    x: () => all[at] && may("operate") && toggle(all[at].id),
    Enter: open,
    f: () => document.getElementById("dead-q")?.focus(),
  });
  return (
    <>
      <TopBar
        title="Dead letters"
        beside={
          query.data && (
            <span className="count">
              {count(all.length)}
              {query.hasNextPage ? "+" : ""}
            </span>
          )
        }
      >
        {may("operate") && all.length > 0 && (
          <button type="button" className="btn" onClick={() => setRetrying(runs.length > 0 ? { runs } : {})}>
            <Icon name="retry" />
            {runs.length > 0 ? `Retry ${plural(runs.length, "run")}` : "Retry all matching…"}
          </button>
        )}
      </TopBar>
      <Filters filter={filter} onChange={(change) => url.set(change)} />
      <div className={`scroll list-page ${query.isPlaceholderData ? "stale" : ""}`}>
        {query.isPending ? (
          <Skeleton rows={10} />
        ) : query.error && all.length === 0 ? (
          <Failed error={query.error} retry={() => void query.refetch()} />
        ) : all.length === 0 ? (
          <NoneFound
            filter={filter}
            onClear={() => url.set({ workflow: null, task: null, queue: null, q: null, since: null })}
          />
        ) : (
          <Table
            letters={all}
            chosen={chosen}
            at={at}
            onToggle={may("operate") ? toggle : undefined}
            onAll={(on) => setChosen(on ? new Set(all.map((d) => d.id)) : new Set())}
          />
        )}
        {query.hasNextPage && (
          <div className="list-foot">
            <button
              type="button"
              className="btn sm"
              onClick={() => void query.fetchNextPage()}
              disabled={query.isFetchingNextPage}
            >
              {query.isFetchingNextPage ? "Loading…" : "Older ones"}
            </button>
          </div>
        )}
      </div>
      {retrying && (
        <RetryDialog
          filter={filter}
          runs={retrying.runs}
          onClose={() => {
            setRetrying(null);
            setChosen(new Set());
          }}
        />
      )}
    </>
  );
}

function pageOf(letter: DeadLetter): string {
  return taskPage({ ...letter, name: letter.task });
}

function NoneFound({ filter, onClear }: { filter: Filter; onClear: () => void }) {
  if (isEmpty(filter))
    return (
      <Empty title="No dead letters" command="perdure dead-letter list">
        A task that has failed for good, after its last attempt, and that failed its run is listed here until the run is
        retried or deleted.
      </Empty>
    );
  return (
    <Empty
      title={`No dead letters ${words(filter)}`}
      command={command(filter).replace(" retry", " list").replace(" --all", "")}
      action={
        <button type="button" className="btn" onClick={onClear}>
          Clear the filter
        </button>
      }
    />
  );
}

function Filters({ filter, onChange }: { filter: Filter; onChange: (change: Record<string, string | null>) => void }) {
  const field = (name: FilterName, label: string, wide = false) => (
    <FilterInput
      id={`dead-${name}`}
      label={label}
      wide={wide}
      value={filter[name] ?? ""}
      onChange={(value) => onChange({ [name]: value || null })}
    />
  );
  return (
    <search className="filters" aria-label="Filter">
      {field("q", "Part of the error", true)}
      {field("workflow", "Workflow")}
      {field("task", "Task or node")}
      {field("queue", "Queue")}
      <select
        className="input"
        aria-label="Failed within"
        value={filter.since ?? ""}
        onChange={(event) => onChange({ since: event.target.value || null })}
      >
        <option value="">Any time</option>
        <option value="1h">Last hour</option>
        <option value="24h">Last 24 h</option>
        <option value="7d">Last 7 d</option>
        <option value="30d">Last 30 d</option>
      </select>
    </search>
  );
}

function Table(props: {
  letters: DeadLetter[];
  chosen: Set<string>;
  at: number;
  onToggle?: (id: string) => void;
  onAll: (on: boolean) => void;
}) {
  const { letters, chosen, onToggle } = props;
  const allChosen = letters.every((d) => chosen.has(d.id));
  return (
    // biome-ignore lint/a11y/noNoninteractiveElementToInteractiveRole: its rows can be selected, which only a grid may have
    <table className="grid dead-table" role="grid" aria-label="Dead letters">
      <thead>
        <tr>
          {onToggle && (
            <th className="check-cell">
              <input
                type="checkbox"
                className="check"
                aria-label="Select all that are shown"
                checked={allChosen}
                ref={(box) => {
                  if (box) box.indeterminate = chosen.size > 0 && !allChosen;
                }}
                onChange={(event) => props.onAll(event.target.checked)}
              />
            </th>
          )}
          <th>Failed</th>
          <th>Workflow</th>
          <th>Run</th>
          <th>Task</th>
          <th>Queue</th>
          <th>Error</th>
          <th className="num">Attempts</th>
        </tr>
      </thead>
      <tbody>
        {letters.map((letter, n) => (
          <tr
            key={letter.id}
            id={`dead-${n}`}
            aria-selected={chosen.has(letter.id)}
            className={n === props.at ? "cursor" : undefined}
          >
            {onToggle && (
              <td className="check-cell">
                <input
                  type="checkbox"
                  className="check"
                  checked={chosen.has(letter.id)}
                  aria-label={`Select ${letter.task} of ${shortId(letter.run_id)}`}
                  onChange={() => onToggle(letter.id)}
                />
              </td>
            )}
            <td>
              <Time at={letter.failed_at} />
            </td>
            <td>
              <Link className="link" to={`/workflows/${encodeURIComponent(letter.workflow)}` as never}>
                {letter.workflow}
              </Link>
            </td>
            <td className="mono">
              <Link className="link" to={pageOf(letter) as never}>
                {letter.key ?? shortId(letter.run_id)}
              </Link>
            </td>
            <td className="mono">{letter.node ?? letter.task}</td>
            <td className="muted">{letter.queue}</td>
            <td className="clip error-cell" title={visible(letter.error.slice(0, 2000))}>
              {visible(letter.error.split("\n")[0]?.slice(0, 300) ?? "")}
            </td>
            <td
              className={`num ${letter.lost > 0 ? "late" : ""}`}
              title={letter.lost > 0 ? `its worker was lost ${letter.lost} times` : undefined}
            >
              {count(letter.attempts)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
