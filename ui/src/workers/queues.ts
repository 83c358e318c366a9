/** Queues: the server's numbers per task, put together per queue, with the slots of their workers. */
import type { Schemas } from "../api/client";

export type Worker = Schemas["ConnectedWorker"];
export type TaskDepth = Schemas["QueueDepth"];

export interface Queue {
  name: string;
  depth: number;
  running: number;
  oldest: number | null;
  workers: number;
  slots: number;
  used: number;
  /** Attempts that ended per second. */
  out: number;
  tasks: TaskDepth[];
  paused: string | null;
}

/** An age beyond this is late; with no worker, or beyond ten times as much, very late. */
export const LATE_S = 60;

export function queuesOf(depths: TaskDepth[], workers: Worker[], paused: Map<string, string>): Queue[] {
  const names = new Set([...depths.map((d) => d.queue), ...workers.flatMap((w) => w.queues), ...paused.keys()]);
  const queues = [...names].map((name) => queueOf(name, depths, workers, paused));
  return queues.sort((a, b) => urgency(b) - urgency(a) || b.depth - a.depth || a.name.localeCompare(b.name));
}

function queueOf(name: string, depths: TaskDepth[], workers: Worker[], paused: Map<string, string>): Queue {
  const tasks = depths.filter((d) => d.queue === name);
  const mine = workers.filter((w) => w.queues.includes(name));
  const ages = tasks.flatMap((t) => t.oldest_age_s ?? []);
  return {
    name,
    depth: sum(tasks.map((t) => t.pending)),
    running: sum(tasks.map((t) => t.running)),
    oldest: ages.length > 0 ? Math.max(...ages) : null,
    workers: mine.length,
    // A worker of several queues gives its slots to any of them.
    slots: sum(mine.map((w) => w.slots)),
    used: sum(mine.map((w) => w.slots_used)),
    out: sum(mine.map((w) => (w.per_s ?? 0) / w.queues.length)),
    tasks,
    paused: paused.get(name) ?? null,
  };
}

function sum(values: number[]): number {
  return values.reduce((a, b) => a + b, 0);
}

function urgency(queue: Queue): number {
  if (queue.depth > 0 && queue.workers === 0) return 3;
  if (isFull(queue)) return 2;
  return queue.depth > 0 ? 1 : 0;
}

export function isFull(queue: Queue): boolean {
  return queue.slots > 0 && queue.used >= queue.slots && queue.depth > 0;
}

export function ageClass(queue: Queue): string {
  if (queue.oldest === null || queue.depth === 0) return "muted";
  if (queue.workers === 0) return "very";
  return queue.oldest > LATE_S * 10 ? "very" : queue.oldest > LATE_S ? "late" : "";
}

export interface Alarm {
  kind: "failed" | "attention";
  text: string;
}

/** The sentences a person came for. */
export function alarms(queues: Queue[]): Alarm[] {
  return queues.flatMap((queue): Alarm[] => {
    if (queue.paused !== null) return [{ kind: "attention", text: `${queue.name} is paused` }];
    if (queue.depth > 0 && queue.workers === 0) return [{ kind: "failed", text: `${queue.name} has no worker` }];
    return isFull(queue) ? [{ kind: "attention", text: `${queue.name} is at its slots` }] : [];
  });
}

/** Blocked first, then busiest. */
export function workersInOrder(workers: Worker[]): Worker[] {
  const load = (w: Worker) => (w.slots ? w.slots_used / w.slots : 0);
  return [...workers].sort(
    (a, b) =>
      Number(b.blocked !== null) - Number(a.blocked !== null) || load(b) - load(a) || a.name.localeCompare(b.name),
  );
}

export interface Sample {
  at: number;
  depths: Record<string, number>;
  /** Pending and running together, by queue. */
  held: Record<string, number>;
  out: Record<string, number>;
}

/** What is kept of the past, while the page is open. */
export const KEPT_MS = 3_600_000;
const POINTS = 60;

export function addSample(samples: Sample[], queues: Queue[], at: number): Sample[] {
  const last = samples.at(-1);
  if (last && at - last.at < 1000) return samples;
  const pick = (value: (q: Queue) => number) => Object.fromEntries(queues.map((q) => [q.name, value(q)]));
  const sample = { at, depths: pick((q) => q.depth), held: pick((q) => q.depth + q.running), out: pick((q) => q.out) };
  return [...samples.filter((s) => at - s.at < KEPT_MS), sample];
}

/** The depth of one queue over the time that is known, in at most 60 points, the newest last. */
export function trend(samples: Sample[], queue: string): number[] {
  const values = samples.map((s) => s.depths[queue] ?? 0);
  if (values.length <= POINTS) return values;
  const step = values.length / POINTS;
  return Array.from({ length: POINTS }, (_, n) =>
    Math.max(...values.slice(Math.floor(n * step), Math.max(Math.floor(n * step) + 1, Math.floor((n + 1) * step)))),
  );
}

/** Tasks that came in per second: those that ended, and by how much the queue grew. Null before two samples. */
export function inRate(samples: Sample[], queue: string, out: number): number | null {
  const last = samples.at(-1);
  const first = samples.find((s) => last && last.at - s.at <= 60_000);
  if (!last || !first || last.at - first.at < 5_000) return null;
  const grown = ((last.held[queue] ?? 0) - (first.held[queue] ?? 0)) / ((last.at - first.at) / 1000);
  return Math.max(0, out + grown);
}
