/** The live tail of events: what is new since the list was read. */
import type { Schemas } from "../api/client";
import { plural } from "../format/numbers";

export type NamedEvent = Schemas["EventSummary"];

/** Ids are numbers that grow; they may be larger than a float holds exactly. */
export function isNewer(a: string, b: string): boolean {
  return a.length === b.length ? a > b : a.length > b.length;
}

export function newSince(head: NamedEvent[], top: string | undefined): NamedEvent[] {
  return top === undefined ? head : head.filter((event) => isNewer(event.id, top));
}

/** One list without doubles, newest first: the head is the fresher copy. */
export function joined(head: NamedEvent[], pages: NamedEvent[]): NamedEvent[] {
  const seen = new Map<string, NamedEvent>();
  for (const event of [...head, ...pages]) if (!seen.has(event.id)) seen.set(event.id, event);
  return [...seen.values()].sort((a, b) => (isNewer(a.id, b.id) ? -1 : 1));
}

/** What the event did so far. */
export function reachText(event: NamedEvent): string {
  const runs = plural(event.reached, "run");
  if (!event.is_done) return `${runs} so far`;
  return event.reached === 0 ? "no run waited" : runs;
}
