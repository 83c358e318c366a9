/** Events of the run, newest first. What arrives while a person reads waits above. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { count, plural } from "../format/numbers";
import { clock, wholeTime } from "../format/times";
import { Icon, StatusMark } from "../parts/icons";
import { jsonText, TextBlock } from "../parts/Payload";
import { Failed, Skeleton } from "../parts/states";
import { Segments } from "../parts/Tabs";
import { useUrl } from "../shell/url";
import { useRunView } from "./context";
import { LABELS_CHUNK, useHistoryPages, useLabels } from "./data";
import { type EventWords, eventWords, isCompact, TaskNames } from "./historyWords";
import { labelOf, nodeOf, type Selection } from "./selection";
import type { HistoryEvent } from "./types";

const ROW_PX = 32;
const JSON_PX = 160;
/** Fewer rows than this to the end: the next page is read. */
const AHEAD = 15;
const LABELS_CHUNKS_MAX = 20;
type Mode = "compact" | "all" | "json";

export function HistoryTab() {
  const view = useRunView();
  const url = useUrl();
  const mode = (url.get("events") as Mode | null) ?? "compact";
  const [shown, setShown] = useState(0);
  const scroller = useRef<HTMLDivElement>(null);
  const pages = useHistoryPages(view.name, view.live.from, true);
  const fresh = view.live.fresh;
  const newest = fresh.at(-1)?.seq ?? view.live.from;
  // At the top, with the pointer elsewhere, new events are shown as they come.
  useEffect(() => {
    const node = scroller.current;
    if (!node || (node.scrollTop < 4 && !node.matches(":hover"))) setShown(newest);
  }, [newest]);
  const all = useMemo(() => {
    const read = pages.data?.pages.flatMap((p) => p.items) ?? [];
    return [...fresh.filter((e) => e.seq <= Math.max(shown, view.live.from)).reverse(), ...read];
  }, [pages.data, fresh, shown, view.live.from]);
  const names = useNames(all);
  const events = useMemo(() => (mode === "compact" ? all.filter(isCompact) : all), [all, mode]);
  const waiting = newest - Math.max(shown, view.live.from);
  return (
    <>
      <div className="tl-bar">
        <span className="muted">{plural(Math.max(view.run.events, newest), "event")}, newest first</span>
        {waiting > 0 && (
          <button
            type="button"
            className="btn sm"
            onClick={() => {
              setShown(newest);
              scroller.current?.scrollTo({ top: 0 });
            }}
          >
            <Icon name="up" size={14} />
            {plural(waiting, "new event")}
          </button>
        )}
        <span className="grow" />
        <Segments
          label="Events shown"
          value={mode}
          onChange={(id) => url.set({ events: id === "compact" ? null : id })}
          options={[
            { id: "compact", label: "Compact" },
            { id: "all", label: "All" },
            { id: "json", label: "JSON" },
          ]}
        />
      </div>
      {pages.error && <Failed error={pages.error} retry={() => void pages.refetch()} />}
      {pages.isPending ? (
        <Skeleton rows={12} />
      ) : (
        <EventList
          key={mode === "json" ? "json" : "rows"}
          scroller={scroller}
          events={events}
          names={names}
          json={mode === "json"}
          onEnd={() => pages.hasNextPage && !pages.isFetchingNextPage && void pages.fetchNextPage()}
        />
      )}
    </>
  );
}

/** Names of tasks, from events that were read; of tasks that were scheduled before them, from their rows. */
function useNames(events: HistoryEvent[]): TaskNames {
  const { name } = useRunView();
  const learnt = useMemo(() => {
    const names = new TaskNames();
    for (const event of events) names.learn(event);
    return names;
  }, [events]);
  const unknown = useMemo(() => {
    const seqs = events
      .flatMap((e) => eventWords(e, learnt).seqs.slice(0, 1))
      .filter((seq) => learnt.find(seq) === null);
    return [...new Set(seqs.map((seq) => Math.floor(seq / LABELS_CHUNK)))].slice(0, LABELS_CHUNKS_MAX);
  }, [events, learnt]);
  const labels = useLabels(name, unknown);
  return useMemo(() => {
    const names = new TaskNames();
    for (const event of events) names.learn(event);
    for (const task of labels) names.tell(task.seq, labelOf(task), nodeOf(task));
    return names;
  }, [events, labels]);
}

function EventList(props: {
  scroller: React.RefObject<HTMLDivElement | null>;
  events: HistoryEvent[];
  names: TaskNames;
  json: boolean;
  onEnd: () => void;
}) {
  const { events, names, json } = props;
  const { selection, select } = useRunView();
  const virtual = useVirtualizer({
    count: events.length,
    getScrollElement: () => props.scroller.current,
    estimateSize: () => (json ? JSON_PX : ROW_PX),
    getItemKey: (n) => events[n]?.seq ?? n,
    overscan: json ? 3 : 12,
  });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  const { onEnd } = props;
  useEffect(() => {
    if (last >= events.length - AHEAD) onEnd();
  }, [last, events.length, onEnd]);
  const above = items[0]?.start ?? 0;
  const below = virtual.getTotalSize() - (items.at(-1)?.end ?? 0);
  if (json)
    return (
      <div className="scroll grow" ref={props.scroller}>
        <div style={{ paddingTop: above, paddingBottom: below }}>
          {items.map((item) => (
            <div key={item.key} ref={virtual.measureElement} data-index={item.index} className="event-json">
              <TextBlock text={jsonText(events[item.index])} json />
            </div>
          ))}
        </div>
      </div>
    );
  return (
    <div className="scroll grow" ref={props.scroller}>
      <table className="grid events" aria-rowcount={events.length}>
        <thead>
          <tr>
            <th className="num">#</th>
            <th>Time</th>
            <th>Event</th>
            <th>Task</th>
            <th>Detail</th>
          </tr>
        </thead>
        <tbody>
          {above > 0 && <tr style={{ height: above }} />}
          {items.map((item) => {
            const event = events[item.index] as HistoryEvent;
            return (
              <EventRow
                key={event.seq}
                event={event}
                words={eventWords(event, names)}
                names={names}
                selection={selection}
                onSelect={select}
              />
            );
          })}
          {below > 0 && <tr style={{ height: below }} />}
        </tbody>
      </table>
    </div>
  );
}

function EventRow(props: {
  event: HistoryEvent;
  words: EventWords;
  names: TaskNames;
  selection: Selection | null;
  onSelect: (selection: Selection) => void;
}) {
  const { event, words, selection } = props;
  const seq = words.seqs[0];
  const target = seq === undefined ? null : props.names.selection(seq);
  const is =
    selection !== null &&
    (selection.seq !== null
      ? words.seqs.includes(selection.seq)
      : target?.node === selection.node || words.about === selection.node);
  const choose = target && (() => props.onSelect(words.seqs.length > 1 ? { node: target.node, seq: null } : target));
  return (
    <tr className={is ? "sel" : ""}>
      <td className="num faint">{count(event.seq)}</td>
      <td className="muted" title={wholeTime(event.at)}>
        {clock(event.at)}
      </td>
      <td>
        <span className="st">
          {words.status ? <StatusMark status={words.status} /> : <Icon name="signal" size={14} />}
          {event.type}
        </span>
      </td>
      <td className="mono">
        {choose ? (
          <button type="button" className="link" onClick={choose}>
            {words.about}
          </button>
        ) : (
          words.about
        )}
      </td>
      <td className="muted" title={words.says}>
        {words.says}
      </td>
    </tr>
  );
}
