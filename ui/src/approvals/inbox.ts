/** The inbox: what is shown, in which order, and what became of what was there. */
import type { Schemas } from "../api/client";

export type Approval = Schemas["ApprovalInfo"];

/** A deadline closer than this is due soon. */
export const SOON_MS = 4 * 3_600_000;

export interface Entry {
  approval: Approval;
  /** It is no longer among the open ones; it stays where it is until the list is opened anew. */
  gone: boolean;
}

export function keyOf(approval: { run_id: string; name: string }): string {
  return `${approval.run_id}/${approval.name}`;
}

/** A run that is retried may ask something else under the same name. */
export function questionKey(approval: Approval): string {
  return `${keyOf(approval)}?${approval.question}`;
}

function deadline(approval: Approval): number {
  return approval.deadline_at ? Date.parse(approval.deadline_at) : Number.POSITIVE_INFINITY;
}

/** By deadline, those without one last and oldest first. */
export function byDeadline(a: Approval, b: Approval): number {
  const [x, y] = [deadline(a), deadline(b)];
  return x === y ? Date.parse(a.created_at) - Date.parse(b.created_at) : x < y ? -1 : 1;
}

/** What is shown stays in its place; what is new comes behind it. */
export function merge(shown: Entry[], open: Approval[]): Entry[] {
  const fresh = new Map(open.map((a) => [keyOf(a), a]));
  const kept = shown.map((entry) => {
    const now = fresh.get(keyOf(entry.approval));
    fresh.delete(keyOf(entry.approval));
    return now ? { approval: now, gone: false } : { ...entry, gone: true };
  });
  return [...kept, ...[...fresh.values()].sort(byDeadline).map((approval) => ({ approval, gone: false }))];
}

export interface Groups {
  soon: Entry[];
  later: Entry[];
}

export function grouped(entries: Entry[], now: number): Groups {
  const out: Groups = { soon: [], later: [] };
  for (const entry of entries) (deadline(entry.approval) - now < SOON_MS ? out.soon : out.later).push(entry);
  return out;
}

/** Whether one of the names of the session may answer now; anyone may where no one is named. */
export function mayAnswer(approval: Approval, names: (string | null)[]): boolean {
  return approval.answerers.length === 0 || approval.answerers.some((who) => names.includes(who));
}

/** In whose name a session answers: its own, or the one that it chose of those who are asked. */
export function answerAs(approval: Approval, isOwn: boolean, chosen: string): string | null {
  if (isOwn) return null;
  return approval.answerers.includes(chosen) ? chosen : (approval.answerers[0] ?? null);
}

/** "lena or finance-leads" */
export function orList(names: string[]): string {
  return names.length < 2 ? (names[0] ?? "") : `${names.slice(0, -1).join(", ")} or ${names.at(-1)}`;
}

/** Whose answers made the decision, the last one first; no one decides what expires. */
export function deciders(approval: Approval): string[] {
  if (approval.status !== "approved" && approval.status !== "rejected") return [];
  const isApproved = approval.status === "approved";
  return approval.votes
    .filter((vote) => vote.approved === isApproved)
    .map((vote) => vote.who)
    .reverse();
}

export interface Link {
  source: string;
  target: string;
  label: string;
}

/** Where a flow goes from an approval after an answer: `approved`, `rejected` or `timeout`. */
export function nextNodes(links: Link[], node: string, action: string): string[] {
  const own = links.filter((l) => l.source === node);
  const named = own.filter((l) => l.label.split(/[,\s]+/).includes(action));
  return (named.length > 0 ? named : own.filter((l) => l.label === "")).map((l) => l.target);
}
