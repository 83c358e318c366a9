/** Where in a history something happened. Events are numbered without gaps and their times do not go back, so a few looks are enough. */
import { ms } from "../format/times";
import type { HistoryEvent } from "./types";

/** Events read at each look. */
export const LOOK = 50;
const LOOKS_MAX = 24;
/** The times of a task's row and of its event may differ by as much: they are written by different statements. */
const APART_MS = 2_000;

export type ReadEvents = (after: number, limit: number) => Promise<HistoryEvent[]>;

/** The first event for which `found` holds, near a time. Null when there is none within reach. */
export async function findEvent(
  read: ReadEvents,
  events: number,
  at: string,
  found: (event: HistoryEvent) => boolean,
): Promise<HistoryEvent | null> {
  const from = ms(at) - APART_MS;
  let [low, high] = [0, events];
  // The last event before `from`.
  for (let n = 0; n < LOOKS_MAX && high - low > LOOK; n += 1) {
    const middle = Math.floor((low + high) / 2);
    const [event] = await read(middle, 1);
    if (event && ms(event.at) < from) low = middle + 1;
    else high = middle;
  }
  for (let after = low, n = 0; n < LOOKS_MAX; n += 1, after += LOOK) {
    const page = await read(after, LOOK);
    const hit = page.find(found);
    if (hit) return hit;
    const last = page.at(-1);
    if (!last || page.length < LOOK || ms(last.at) > ms(at) + APART_MS) return null;
  }
  return null;
}

type Data = Record<string, unknown>;

export function inputIn(event: HistoryEvent, seq: number): { value: unknown } | null {
  if (event.type !== "TasksScheduled") return null;
  const d = event.data as Data;
  const inputs = d.inputs as unknown[];
  const n = seq - (d.first as number);
  return n >= 0 && n < inputs.length ? { value: inputs[n] } : null;
}

export function outputIn(event: HistoryEvent, seq: number): { value: unknown } | null {
  if (event.type !== "TasksSucceeded") return null;
  const d = event.data as Data;
  const n = (d.seqs as number[]).indexOf(seq);
  return n >= 0 ? { value: (d.results as unknown[])[n] } : null;
}
