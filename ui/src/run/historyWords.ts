/** Events of a history in words: what it is about, what it says, and the status whose mark stands before it. */
import { duration } from "../format/durations";
import { count, plural } from "../format/numbers";
import { clock, ms } from "../format/times";
import type { StatusWord } from "../parts/icons";
import { brief } from "../parts/Payload";
import type { Selection } from "./selection";
import type { HistoryEvent } from "./types";

export interface EventWords {
  status: StatusWord | null;
  /** Whom it is about, as a person knows it. */
  about: string;
  says: string;
  /** Task numbers that it is about; those of long lists are not all listed. */
  seqs: number[];
}

type Data = Record<string, unknown>;
const text = (v: unknown): string => (typeof v === "string" ? v : "");
const number = (v: unknown): number => (typeof v === "number" ? v : -1);
const list = (v: unknown): unknown[] => (Array.isArray(v) ? v : []);
const numbers = (v: unknown): number[] => list(v).filter((n): n is number => typeof n === "number");

/** Names of tasks by their numbers, as far as events that were read told them. */
export class TaskNames {
  private spans: { first: number; last: number; name: string; nodes: string[]; index: number }[] = [];
  private seen = new Set<number>();
  private told = new Map<number, { label: string; node: string }>();

  learn(event: HistoryEvent): void {
    if (this.seen.has(event.seq)) return;
    this.seen.add(event.seq);
    const d = event.data as Data;
    if (event.type === "TasksScheduled") {
      const first = number(d.first);
      const nodes = list(d.nodes).map(String);
      this.spans.push({
        first,
        last: first + list(d.inputs).length - 1,
        name: text(d.name),
        nodes,
        index: number(d.index),
      });
    }
    if (event.type === "TasksSkipped") {
      const nodes = list(d.nodes).map(String);
      const first = number(d.first);
      this.spans.push({ first, last: first + nodes.length - 1, name: "", nodes, index: -1 });
    }
  }

  /** What a task's row says. */
  tell(seq: number, label: string, node: string): void {
    this.told.set(seq, { label, node });
  }

  find(seq: number): { label: string; node: string } | null {
    const told = this.told.get(seq);
    if (told) return told;
    const span = this.spans.find((s) => s.first <= seq && seq <= s.last);
    if (!span) return null;
    const place = seq - span.first;
    if (span.index >= 0) return { label: `${span.nodes[0]}[${span.index + place}]`, node: span.nodes[0] as string };
    const node = span.nodes[place];
    if (node) return { label: node, node: node.replace(/\[\d+\]/g, "") };
    return { label: span.first === span.last ? span.name : `${span.name} #${seq}`, node: span.name };
  }

  label(seq: number): string {
    return this.find(seq)?.label ?? `task ${seq}`;
  }

  selection(seq: number): Selection | null {
    const found = this.find(seq);
    return found ? { node: found.node, seq } : null;
  }
}

function failure(v: unknown): string {
  const f = (v ?? {}) as { type?: string; code?: string; message?: string };
  return brief([f.type || f.code, f.message].filter(Boolean).join(": "), 300);
}

function some(seqs: number[], names: TaskNames): string {
  if (seqs.length === 0) return "";
  if (seqs.length === 1) return names.label(seqs[0] as number);
  const node = names.find(seqs[0] as number)?.node;
  return node ?? `${count(seqs.length)} tasks`;
}

const by = (d: Data): string => (text(d.by) ? `by ${text(d.by)}` : "");
const joined = (...parts: string[]): string => parts.filter(Boolean).join(", ");

type Words = (d: Data, names: TaskNames) => Partial<EventWords>;

const WORDS: Record<string, Words> = {
  RunStarted: (d) => ({
    status: "running",
    says: joined(
      `version ${text(d.version)}`,
      text(d.parent_id) && `child of ${text(d.parent_id)}`,
      text(d.schedule) && `by schedule ${text(d.schedule)}`,
      text(d.rerun_of) && `rerun of ${text(d.rerun_of)}`,
    ),
  }),
  RunBegan: (d) => ({ status: "running", says: text(d.version) && `version ${text(d.version)}` }),
  RunSucceeded: (d) => ({ status: "success", says: brief(d.result) }),
  RunFailed: (d) => ({
    status: "failed",
    says: joined(failure(d.failure), number(d.cause) > 0 ? `from event ${number(d.cause)}` : ""),
  }),
  RunCancelled: (d) => ({ status: "cancelled", says: text(d.reason) }),
  RunTerminated: (d) => ({ status: "cancelled", says: joined(text(d.reason), by(d)) }),
  RunContinued: (d) => ({ status: "success", says: `continues as ${text(d.run_id)}` }),
  RunRetried: (d) => ({
    says: joined(`${plural(numbers(d.voided_tasks).length, "task")} again`, by(d)),
    seqs: numbers(d.voided_tasks),
  }),
  RunForked: (d) => ({
    says: joined(
      `from ${text(d.run_id)} after event ${number(d.at)}`,
      list(d.edited).length ? `edited ${list(d.edited).join(", ")}` : "",
      by(d),
    ),
  }),
  NodeOverridden: (d) => ({ about: text(d.node), says: joined(text(d.how), by(d)) }),
  VersionChanged: (d) => ({ says: joined(`${text(d.before)} → ${text(d.version)}`, by(d)) }),
  CancelRequested: (d) => ({
    status: "cancelled",
    says: text(d.reason) || (d.deadline ? "the run has reached its deadline" : ""),
  }),
  TasksScheduled: (d, names) => {
    const first = number(d.first);
    const n = list(d.inputs).length;
    const about = n === 1 ? names.label(first) : (names.find(first)?.node ?? text(d.name));
    return {
      status: "pending",
      about,
      says: joined(n > 1 ? `${count(n)} tasks in one command` : "", `queue ${text(d.queue)}`),
      seqs: n === 1 ? [first] : span(first, n),
    };
  },
  TasksSucceeded: (d, names) => {
    const seqs = numbers(d.seqs);
    return {
      status: "success",
      about: some(seqs, names),
      says: seqs.length === 1 ? brief(list(d.results)[0]) : plural(seqs.length, "task"),
      seqs,
    };
  },
  TaskFailed: (d, names) => ({
    status: "failed",
    about: names.label(number(d.seq)),
    says: joined(failure(d.failure), `after ${plural(number(d.attempts), "attempt")}`),
    seqs: [number(d.seq)],
  }),
  TasksCancelled: (d, names) => ({
    status: "cancelled",
    about: some(numbers(d.seqs), names),
    says: plural(numbers(d.seqs).length, "task"),
    seqs: numbers(d.seqs),
  }),
  TasksSkipped: (d) => ({
    status: "skipped",
    about: list(d.nodes).slice(0, 3).join(", "),
    says: text(d.reason),
    seqs: span(number(d.first), list(d.nodes).length),
  }),
  TimerStarted: (d) => ({
    status: "pending",
    about: `timer ${number(d.seq)}`,
    says: number(d.fire_at_us) > 0 ? `fires at ${clock(number(d.fire_at_us) / 1000)}` : "",
  }),
  TimerFired: (d) => ({ status: "success", about: `timer ${number(d.seq)}` }),
  TimerCancelled: (d) => ({ status: "cancelled", about: `timer ${number(d.seq)}` }),
  ChildStarted: (d) => ({ status: "running", about: text(d.workflow), says: text(d.run_id) }),
  ChildSucceeded: (d) => ({ status: "success", about: `child ${number(d.seq)}`, says: brief(d.result) }),
  ChildFailed: (d) => ({ status: "failed", about: `child ${number(d.seq)}`, says: failure(d.failure) }),
  ChildCancelled: (d) => ({ status: "cancelled", about: `child ${number(d.seq)}`, says: text(d.reason) }),
  ChildCancelRequested: (d) => ({ status: "cancelled", about: `child ${number(d.seq)}` }),
  SignalReceived: (d) => ({ says: `${text(d.name)}: ${brief(d.value)}` }),
  PromiseCreated: (d) => ({
    status: "pending",
    about: text(d.name),
    says: ["promise", "approval", "event"][number(d.kind)] ?? "promise",
  }),
  PromiseResolved: (d) => ({ status: "success", about: text(d.name), says: brief(d.value) }),
  UpdateReceived: (d) => ({ says: `${text(d.name)}: ${brief(d.value)}` }),
  UpdateAnswered: (d) => ({
    status: d.failure ? "failed" : "success",
    says: d.failure ? failure(d.failure) : brief(d.value),
  }),
  OperationRecorded: (d) => ({
    status: d.failure ? "failed" : "success",
    about: text(d.name),
    says: d.failure ? failure(d.failure) : brief(d.value),
  }),
  StateSet: (d) => ({ says: `${text(d.name)} = ${brief(d.value)}` }),
  StateCleared: (d) => ({ says: text(d.name) }),
  PatchRecorded: (d) => ({ says: text(d.name) }),
  AttributesSet: (d) => ({ says: brief(d.change) }),
};

/** Numbers from `first` on; of a long list only its ends matter to what selects it. */
function span(first: number, n: number): number[] {
  return Array.from({ length: Math.min(n, 1000) }, (_, k) => first + k);
}

export function eventWords(event: HistoryEvent, names: TaskNames): EventWords {
  const found = WORDS[event.type]?.(event.data as Data, names) ?? { says: brief(event.data) };
  return { status: found.status ?? null, about: found.about ?? "", says: found.says ?? "", seqs: found.seqs ?? [] };
}

/** Left out of the compact list: requests whose outcome has an event of its own. */
const DETAIL = new Set([
  "TimerStarted",
  "PatchRecorded",
  "OperationRecorded",
  "ChildCancelRequested",
  "AttributesSet",
  "RunBegan",
]);

export function isCompact(event: HistoryEvent): boolean {
  return !DETAIL.has(event.type);
}

/** Since the run's start: +4 m 07 s. */
export function offsetWords(event: HistoryEvent, start: string): string {
  return `+${duration((ms(event.at) - ms(start)) / 1000)}`;
}
