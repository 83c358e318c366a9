/** Audit: who did what, newest first. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { shortId } from "../format/ids";
import { count } from "../format/numbers";
import { Actor, useKeyNames } from "../parts/Actor";
import { subjectOf } from "../parts/actors";
import { FilterInput } from "../parts/FilterInput";
import { brief, visible } from "../parts/Payload";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useUrl } from "../shell/url";
import { command, detailText, type Entry, FILTERS, type Filter, type FilterName, filterOf, pageOf } from "./targets";
import "./audit.css";

const PAGE = 200;
const SPANS = ["1h", "24h", "7d", "30d"];
const CLEARED = Object.fromEntries(FILTERS.map((name) => [name, null]));

export function AuditPage() {
  const url = useUrl();
  const { may } = useSession();
  const keys = useKeyNames();
  const filter = filterOf(url.get);
  const wanted = filter.actor ? { ...filter, actor: subjectOf(filter.actor, keys) } : filter;
  useKeys({ f: () => document.getElementById("audit-actor")?.focus() });
  const query = useInfiniteQuery({
    queryKey: ["audit", wanted],
    queryFn: ({ pageParam }) =>
      body(api.GET("/api/v1/audit", { params: { query: { ...wanted, limit: PAGE, cursor: pageParam || undefined } } })),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    placeholderData: (before) => before,
    enabled: may("admin"),
  });
  const all = query.data?.pages.flatMap((page) => page.items) ?? [];
  if (!may("admin"))
    return (
      <>
        <TopBar title="Audit" />
        <Empty title="The audit log is for administrators">Your role does not include it.</Empty>
      </>
    );
  const isFiltered = Object.keys(filter).length > 0;
  return (
    <>
      <TopBar
        title="Audit"
        beside={
          query.data && (
            <span className="count">
              {count(all.length)}
              {query.hasNextPage ? "+" : ""}
            </span>
          )
        }
      />
      <Filters filter={filter} onChange={(change) => url.set(change)} />
      <div className={`scroll list-page ${query.isPlaceholderData ? "stale" : ""}`}>
        {query.isPending ? (
          <Skeleton rows={12} />
        ) : query.error && all.length === 0 ? (
          <Failed error={query.error} retry={() => void query.refetch()} />
        ) : all.length > 0 ? (
          <AuditTable entries={all} />
        ) : query.hasNextPage ? (
          <Empty title="No entry matches so far">The newest entries were searched, older ones are left.</Empty>
        ) : isFiltered ? (
          <Empty
            title="No entry matches"
            command={command(wanted)}
            action={
              <button type="button" className="btn" onClick={() => url.set(CLEARED)}>
                Clear the filter
              </button>
            }
          />
        ) : (
          <Empty title="No entries" command="perdure audit">
            Every act that changes something is written down: who, what, when and to what.
          </Empty>
        )}
        {query.hasNextPage && (
          <div className="list-foot">
            <button
              type="button"
              className="btn sm"
              onClick={() => void query.fetchNextPage()}
              disabled={query.isFetchingNextPage}
            >
              {query.isFetchingNextPage ? "Loading…" : isFiltered ? "Search older entries" : "Older entries"}
            </button>
          </div>
        )}
      </div>
    </>
  );
}

function Filters({ filter, onChange }: { filter: Filter; onChange: (change: Record<string, string | null>) => void }) {
  const field = (name: FilterName, label: string) => (
    <FilterInput
      id={`audit-${name}`}
      label={label}
      value={filter[name] ?? ""}
      onChange={(value) => onChange({ [name]: value || null })}
    />
  );
  return (
    <search className="filters" aria-label="Filter">
      {field("actor", "Who")}
      {field("action", "What, such as run.")}
      {field("target", "Target")}
      <select
        className="input"
        aria-label="Within"
        value={filter.since ?? ""}
        onChange={(event) => onChange({ since: event.target.value || null, until: null })}
      >
        <option value="">Any time</option>
        <option value="1h">Last hour</option>
        <option value="24h">Last 24 h</option>
        <option value="7d">Last 7 d</option>
        <option value="30d">Last 30 d</option>
        {filter.since && !SPANS.includes(filter.since) && (
          <option value={filter.since}>Since {visible(filter.since)}</option>
        )}
      </select>
    </search>
  );
}

function AuditTable({ entries }: { entries: Entry[] }) {
  return (
    <table className="grid audit-table" aria-label="Audit log">
      <thead>
        <tr>
          <th>When</th>
          <th>Who</th>
          <th>What</th>
          <th>Target</th>
          <th>Namespace</th>
          <th>Detail</th>
        </tr>
      </thead>
      <tbody>
        {entries.map((entry) => (
          <tr key={entry.id}>
            <td>
              <Time at={entry.at} />
            </td>
            <td className="mono clip who-cell" title={visible(entry.actor)}>
              <Actor subject={entry.actor} />
            </td>
            <td className="mono strong">{entry.action}</td>
            <td className="mono clip target-cell" title={visible(entry.target)}>
              <Target entry={entry} />
            </td>
            <td className="muted">{entry.namespace ?? <span className="faint">all</span>}</td>
            <td className="muted clip detail-cell" title={brief(detailText(entry.detail), 1000)}>
              {brief(detailText(entry.detail)) || <span className="faint">–</span>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Target({ entry }: { entry: Entry }) {
  const page = pageOf(entry);
  const shown = visible(/^[0-9a-f]{8}-[0-9a-f-]{27}$/i.test(entry.target) ? shortId(entry.target) : entry.target);
  if (!page) return <>{shown || "–"}</>;
  return (
    <Link className="link" to={page as never}>
      {shown}
    </Link>
  );
}
