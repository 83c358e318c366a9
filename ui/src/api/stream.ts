/**
 * One event stream for the whole page.
 *
 * Parts of the page ask for topics; the stream is opened with all of them and opened anew when they change, from where it was.
 * Events are gathered and handed out at most four times a second.
 */
import { createParser, type EventSourceMessage } from "eventsource-parser";
import { useEffect, useRef, useSyncExternalStore } from "react";
import { credentials, signedOut } from "./client";

export const PAINT_MS = 250;
/** The server sends a comment every 15 s; after this long without one the connection is taken for dead. */
const SILENCE_MS = 40_000;
const REOPEN_MS = [500, 1000, 2000, 5000, 10_000];

export type Topic = "runs" | "counts" | `run:${string}` | `logs:${string}` | `bulk:${string}`;
export type StreamEvent = "run" | "history" | "log" | "counts" | "bulk";

export type StreamState = { phase: "idle" | "opening" | "live" } | { phase: "lost"; heardAt: number };
type Listener = (batch: unknown[]) => void;

class LiveStream {
  private topics = new Map<Topic, number>();
  private listeners = new Map<StreamEvent, Set<Listener>>();
  private waiting = new Map<StreamEvent, unknown[]>();
  private reading: AbortController | null = null;
  private opened = "";
  private lastId = "";
  private failures = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private flushTimer: ReturnType<typeof setTimeout> | undefined;
  private watchers = new Set<() => void>();
  private heardAt = Date.now();
  state: StreamState = { phase: "idle" };

  follow(topic: Topic): () => void {
    this.topics.set(topic, (this.topics.get(topic) ?? 0) + 1);
    this.plan(0);
    return () => {
      const left = (this.topics.get(topic) ?? 1) - 1;
      if (left === 0) this.topics.delete(topic);
      else this.topics.set(topic, left);
      this.plan(0);
    };
  }

  listen(event: StreamEvent, listener: Listener): () => void {
    const all = this.listeners.get(event) ?? new Set();
    all.add(listener);
    this.listeners.set(event, all);
    return () => all.delete(listener);
  }

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  snapshot = (): StreamState => this.state;

  /** In a later task, so that a page that changes several topics opens one stream. */
  private plan(delay: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), delay);
  }

  private open(): void {
    const address = this.address();
    if (address === this.opened && this.reading) return;
    this.reading?.abort();
    this.reading = null;
    this.opened = address;
    if (!address) {
      this.become({ phase: "idle" });
      return;
    }
    if (this.state.phase !== "lost") this.become({ phase: "opening" });
    const reading = new AbortController();
    this.reading = reading;
    this.read(address, reading).then(
      () => this.lose(reading),
      () => this.lose(reading),
    );
  }

  private async read(address: string, reading: AbortController): Promise<void> {
    // fetch, not EventSource: that one cannot name the namespace or, after a change of topics, where to go on.
    const headers: Record<string, string> = { Accept: "text/event-stream" };
    if (credentials.namespace) headers["Perdure-Namespace"] = credentials.namespace;
    if (this.lastId) headers["Last-Event-ID"] = this.lastId;
    const answer = await fetch(address, { headers, signal: reading.signal, cache: "no-store" });
    if (answer.status === 401) signedOut();
    if (!answer.ok || !answer.body) throw new Error(`the stream was answered with ${answer.status}`);
    this.failures = 0;
    this.become({ phase: "live" });
    const parser = createParser({ onEvent: (event) => this.receive(event) });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const silent = setTimeout(() => reading.abort(), SILENCE_MS);
      const part = await reader.read().finally(() => clearTimeout(silent));
      if (part.done) return;
      this.heardAt = Date.now();
      parser.feed(part.value);
    }
  }

  private address(): string {
    if (this.topics.size === 0) return "";
    const asked = new URLSearchParams();
    for (const topic of [...this.topics.keys()].sort()) {
      const [name, id] = topic.split(/:(.*)/, 2);
      // `run:ID@17`: events above the 17th; `logs:ID@TIME`: lines since then.
      const [target, since] = (id ?? "true").split("@", 2) as [string, string?];
      asked.set(name as string, target);
      if (since) asked.set(name === "run" ? "after" : "since", since);
    }
    return `/api/v1/stream?${asked}`;
  }

  private receive(event: EventSourceMessage): void {
    if (event.id) this.lastId = event.id;
    const name = event.event as StreamEvent;
    if (!this.listeners.has(name)) return;
    const batch = this.waiting.get(name) ?? [];
    batch.push(JSON.parse(event.data));
    this.waiting.set(name, batch);
    this.flushTimer ??= setTimeout(() => this.flush(), PAINT_MS);
  }

  private flush(): void {
    this.flushTimer = undefined;
    const waiting = this.waiting;
    this.waiting = new Map();
    for (const [name, batch] of waiting) for (const listener of this.listeners.get(name) ?? []) listener(batch);
  }

  private lose(reading: AbortController): void {
    if (this.reading !== reading) return; // replaced on purpose
    const delay = REOPEN_MS[Math.min(this.failures, REOPEN_MS.length - 1)] as number;
    reading.abort();
    this.failures += 1;
    this.reading = null;
    this.opened = "";
    if (this.state.phase !== "lost") this.become({ phase: "lost", heardAt: this.heardAt });
    this.plan(delay);
  }

  private become(state: StreamState): void {
    this.state = state;
    for (const watcher of this.watchers) watcher();
  }
}

export const stream = new LiveStream();

export function useStreamState(): StreamState {
  return useSyncExternalStore(stream.watch, stream.snapshot);
}

/** Follow a topic while the component is there; null follows nothing. */
export function useTopic(topic: Topic | null): void {
  useEffect(() => (topic ? stream.follow(topic) : undefined), [topic]);
}

/** Receive batches of one kind of event. */
export function useEvents<T>(event: StreamEvent, listener: (batch: T[]) => void): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => stream.listen(event, (batch) => latest.current(batch as T[])), [event]);
}
