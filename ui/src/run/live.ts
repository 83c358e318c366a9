/** The run as it changes: events of its history arrive, and what they changed is asked for again, at most once a second. */
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useEvents, useTopic } from "../api/stream";
import { refresh } from "./data";
import type { HistoryEvent } from "./types";

export const REFRESH_MS = 1_000;
/** Events that arrived while the page was open and are kept for the history. */
const FRESH_MAX = 500;

type Arrived = HistoryEvent & { run_id: string };

export interface LiveHistory {
  /** Events up to this number were there when the page was opened. */
  from: number;
  /** Those after it, in order, without gaps. */
  fresh: HistoryEvent[];
}

export function useLiveRun(id: string | undefined, events: number | undefined): LiveHistory {
  const client = useQueryClient();
  const [history, setHistory] = useState<LiveHistory & { id: string }>({ id: "", from: 0, fresh: [] });
  useEffect(() => {
    if (id && events !== undefined) setHistory((h) => (h.id === id ? h : { id, from: events, fresh: [] }));
  }, [id, events]);
  const known = history.id === id;
  useTopic(id && known ? `run:${id}@${history.from}` : null);
  const later = useThrottled(REFRESH_MS);
  const waiting = useRef<HistoryEvent[]>([]);
  useEvents<Arrived>("history", (batch) => {
    if (!id) return;
    const mine = batch.filter((e) => e.run_id === id);
    if (mine.length === 0) return;
    setHistory((h) => (h.id === id ? { id, ...extended(h, mine) } : h));
    const last = history.fresh.at(-1)?.seq ?? history.from;
    const news = mine.filter((e) => e.seq > last);
    if (news.length === 0) return;
    waiting.current.push(...news);
    later(() => refresh(client, id, waiting.current.splice(0)));
  });
  return known ? history : { from: 0, fresh: [] };
}

/** With events that follow; when there are too many, they count as known and are read as pages. */
export function extended(history: LiveHistory, arrived: HistoryEvent[]): LiveHistory {
  const last = history.fresh.at(-1)?.seq ?? history.from;
  const news = arrived.filter((e) => e.seq > last).sort((a, b) => a.seq - b.seq);
  if (news.length === 0) return history;
  const fresh = [...history.fresh, ...news];
  if (fresh.length <= FRESH_MAX) return { from: history.from, fresh };
  return { from: fresh.at(-1)?.seq ?? history.from, fresh: [] };
}

/** At once, then at most once in so many milliseconds; the last call is never lost. */
export function useThrottled(everyMs: number): (call: () => void) => void {
  const state = useRef({ at: 0, timer: undefined as ReturnType<typeof setTimeout> | undefined });
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return (call) => {
    const now = Date.now();
    clearTimeout(state.current.timer);
    const wait = state.current.at + everyMs - now;
    const run = () => {
      state.current.at = Date.now();
      call();
    };
    if (wait <= 0) run();
    else state.current.timer = setTimeout(run, wait);
  };
}
