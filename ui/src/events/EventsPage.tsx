/** Named events with their live tail, and the webhooks that send them. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { plural } from "../format/numbers";
import { Actor } from "../parts/Actor";
import { Copy } from "../parts/Copy";
import { Icon } from "../parts/icons";
import { brief, Payload, visible } from "../parts/Payload";
import { showSelected } from "../parts/rows";
import { Status } from "../parts/Status";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useUrl } from "../shell/url";
import { EmitDialog } from "./EmitDialog";
import { joined, type NamedEvent, newSince, reachText } from "./tail";
import { Webhooks } from "./Webhooks";
import "./events.css";

const PAGE = 50;
const TAIL_MS = 2_000;

export function EventsPage() {
  const url = useUrl();
  const { may } = useSession();
  const [isEmitting, setEmitting] = useState(false);
  const name = url.get("name") ?? "";
  const follows = url.get("follow") === "1";
  const tail = useTail(name, follows);
  const asked = url.get("id");
  const selected = tail.events.find((e) => e.id === asked) ?? (asked ? undefined : tail.events[0]);
  const step = (by: number) => {
    const at = tail.events.findIndex((e) => e.id === selected?.id);
    const next = tail.events[Math.max(0, Math.min(tail.events.length - 1, at + by))];
    if (!next) return;
    url.set({ id: next.id });
    showSelected();
  };
  useKeys({ j: () => step(1), k: () => step(-1), f: () => document.getElementById("event-name")?.focus() });
  const emitButton = may("operate") && (
    <button type="button" className="btn primary" onClick={() => setEmitting(true)}>
      <Icon name="signal" />
      Emit event
    </button>
  );
  return (
    <>
      <TopBar title="Events and webhooks">{emitButton}</TopBar>
      <div className="split work">
        <div className="scroll">
          <section aria-label="Events">
            <div className="sec">
              <h2>Events</h2>
              <span className="grow" />
              {tail.fresh > 0 && (
                <button type="button" className="new-pill" onClick={tail.show}>
                  <Icon name="up" size={12} />
                  {plural(tail.fresh, "new event")}
                </button>
              )}
              <label className="row faint">
                <input
                  type="checkbox"
                  className="check"
                  checked={follows}
                  onChange={(event) => url.set({ follow: event.target.checked ? "1" : null })}
                />
                Follow
              </label>
              <input
                id="event-name"
                type="search"
                className="input event-name"
                placeholder="Name of an event"
                aria-label="Events of this name"
                value={name}
                onChange={(event) => url.set({ name: event.target.value || null, id: null })}
                spellCheck={false}
              />
            </div>
            {tail.error && tail.events.length === 0 ? (
              <Failed error={tail.error} retry={tail.show} />
            ) : tail.isPending ? (
              <Skeleton rows={8} />
            ) : tail.events.length === 0 ? (
              <Empty
                title={name ? `No events named ${name}` : "No events yet"}
                command={`perdure event send ${name || "order.paid"} -d '{"order_id": 42}'`}
                action={emitButton}
              >
                A named event reaches every run that waits for it with a matching payload. Delivered ones are shown for
                seven days.
              </Empty>
            ) : (
              <EventTable events={tail.events} selected={selected?.id ?? null} onSelect={(id) => url.set({ id })} />
            )}
            {tail.more && (
              <div className="list-foot">
                <button type="button" className="btn sm" onClick={tail.more}>
                  Older events
                </button>
              </div>
            )}
          </section>
          <Webhooks />
        </div>
        <EventPanel event={selected} asked={asked} />
      </div>
      {isEmitting && <EmitDialog name={name} onClose={() => setEmitting(false)} onSent={tail.show} />}
    </>
  );
}

/** The pages that were read, and what came since: behind a pill, or at once while following. */
function useTail(name: string, follows: boolean) {
  const pages = useInfiniteQuery({
    queryKey: ["events", name],
    queryFn: ({ pageParam }) =>
      body(api.GET("/api/v1/events", { params: { query: { name, limit: PAGE, cursor: pageParam || undefined } } })),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    placeholderData: (before) => before,
  });
  const head = useQuery({
    queryKey: ["events-head", name],
    queryFn: () => body(api.GET("/api/v1/events", { params: { query: { name, limit: PAGE } } })),
    select: (page) => page.items,
    refetchInterval: TAIL_MS,
  });
  const [upTo, setUpTo] = useState<string | null>(null);
  const old = pages.data?.pages.flatMap((page) => page.items) ?? [];
  const latest = head.data ?? [];
  // biome-ignore lint/correctness/useExhaustiveDependencies: another name is another list
  useEffect(() => setUpTo(null), [name]);
  const top = upTo ?? old[0]?.id;
  const fresh = pages.data ? newSince(latest, top) : [];
  const isHidden = new Set(follows ? [] : fresh.map((e) => e.id));
  return {
    events: joined(latest, old).filter((event) => !isHidden.has(event.id)),
    fresh: follows ? 0 : fresh.length,
    show: () => {
      setUpTo(latest[0]?.id ?? null);
      void head.refetch().then((found) => found.data?.[0] && setUpTo(found.data[0].id));
    },
    more: pages.hasNextPage ? () => void pages.fetchNextPage() : undefined,
    isPending: pages.isPending,
    error: pages.error,
  };
}

function EventTable(props: { events: NamedEvent[]; selected: string | null; onSelect: (id: string) => void }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveElementToInteractiveRole: its rows can be selected, which only a grid may have
    <table className="grid event-table" role="grid" aria-label="Events">
      <thead>
        <tr>
          <th>When</th>
          <th>Event</th>
          <th>Payload</th>
          <th>From</th>
          <th>Reached</th>
        </tr>
      </thead>
      <tbody>
        {props.events.map((event) => {
          const isSelected = event.id === props.selected;
          return (
            <tr
              key={event.id}
              aria-selected={isSelected}
              onClick={(click) => !(click.target as Element).closest("button") && props.onSelect(event.id)}
            >
              <td>
                <Time at={event.at} />
              </td>
              <td className="mono strong">
                <button type="button" aria-pressed={isSelected} onClick={() => props.onSelect(event.id)}>
                  {visible(event.name)}
                </button>
              </td>
              <td className="mono muted clip payload-cell">{brief(event.payload)}</td>
              <td className="muted clip from-cell" title={event.source}>
                <Actor subject={event.source} />
              </td>
              <td>
                {event.is_done ? (
                  <span className={event.reached ? "" : "faint"}>{reachText(event)}</span>
                ) : (
                  <Status status="running" word={reachText(event)} />
                )}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function EventPanel({ event, asked }: { event: NamedEvent | undefined; asked: string | null }) {
  if (!event)
    return (
      <aside className="wp" aria-label="Event">
        {asked && (
          <Empty title="This event is not in the list">It is on an older page, or it is no longer shown.</Empty>
        )}
      </aside>
    );
  return (
    <aside className="wp scroll" aria-label={`Event ${event.name}`}>
      <header>
        <h2 className="clip">{visible(event.name)}</h2>
        <div className="row muted">
          <Status
            status={event.is_done ? "success" : "running"}
            word={event.is_done ? "Delivered" : "Being delivered"}
          />
          <Time at={event.at} />
        </div>
      </header>
      <section>
        <dl className="kv">
          <dt>Reached</dt>
          <dd>{reachText(event)}</dd>
          <dt>From</dt>
          <dd>
            <Actor subject={event.source} />
          </dd>
          <dt>Key</dt>
          <dd className="mono">{event.key === null ? "–" : visible(event.key)}</dd>
          <dt>Id</dt>
          <dd className="mono">{event.id}</dd>
        </dl>
      </section>
      <section>
        <h3>
          Payload
          <span className="faint">
            <Copy text={JSON.stringify(event.payload, null, 2) ?? "null"} label="Copy payload" />
          </span>
        </h3>
        <Payload value={event.payload} />
      </section>
    </aside>
  );
}
