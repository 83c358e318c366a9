/**
 * Whether a run matches a query, for rows that change while they are shown. Null: the row does not tell (its wait reason may be unknown,
 * texts of other types may compare otherwise); then it stays as it is until the list is read again.
 */
import type { Schemas } from "../api/client";
import { ms } from "../format/times";
import { momentOf, type Node, type Term, type Value } from "./query";

export type RunSummary = Schemas["RunSummary"];
type Verdict = boolean | null;

export function matches(node: Node | null, run: RunSummary, now: number): Verdict {
  if (!node) return true;
  switch (node.kind) {
    case "and":
      return all(node.parts.map((part) => matches(part, run, now)));
    case "or":
      return any(node.parts.map((part) => matches(part, run, now)));
    case "not":
      return negated(matches(node.part, run, now));
    case "words":
      return hasWords(run, node.text);
    case "term":
      return holds(node, run, now);
  }
}

function all(parts: Verdict[]): Verdict {
  if (parts.includes(false)) return false;
  return parts.includes(null) ? null : true;
}

function any(parts: Verdict[]): Verdict {
  if (parts.includes(true)) return true;
  return parts.includes(null) ? null : false;
}

function negated(verdict: Verdict): Verdict {
  return verdict === null ? null : !verdict;
}

function hasWords(run: RunSummary, words: string): boolean {
  const text = words.toLowerCase();
  if (run.id.replaceAll("-", "").startsWith(text.replaceAll("-", ""))) return true;
  const places = [run.key, run.workflow, run.error?.message, run.error?.type, run.stuck];
  return places.some((place) => place?.toLowerCase().includes(text));
}

const ACTIVE = new Set(["pending", "running"]);
export function isActive(run: { status: string }): boolean {
  return ACTIVE.has(run.status);
}

function holds(term: Term, run: RunSummary, now: number): Verdict {
  if (term.op === "!=") return negated(holds({ ...term, op: "=" }, run, now));
  if (term.op === "in") return any(term.values.map((value) => holds({ ...term, op: "=", values: [value] }, run, now)));
  const value = term.values[0];
  switch (term.field) {
    case "status":
      return run.status === value?.text.toLowerCase();
    case "workflow":
    case "version":
      return compareText(run[term.field], term, value);
    case "key":
      return compareText(run.key, term, value);
    case "error_code":
      return compareText(run.error?.code, term, value);
    case "id":
      return compareId(run.id, term, value);
    case "parent":
      return compareId(run.parent_id, term, value);
    case "created":
      return compareMoment(run.created_at, term, value, now);
    case "finished":
      return compareMoment(run.finished_at, term, value, now);
    case "stuck":
      return isTrue(value) === Boolean(run.stuck);
    case "paused":
      return isTrue(value) === Boolean(run.paused_at);
    case "waiting_on":
      return waitsOn(run, term, value);
    default:
      return compareAttribute(run.attributes?.[term.field.slice("attr.".length)], term, value);
  }
}

function isTrue(value: Value | undefined): boolean {
  return /^(true|yes)$/i.test(value?.text ?? "");
}

function waitsOn(run: RunSummary, term: Term, value: Value | undefined): Verdict {
  if (!isActive(run)) return false;
  if (!run.waiting) return null;
  return term.op === "exists" ? true : run.waiting.waits.some((wait) => wait.on === value?.text);
}

function compareText(has: string | null | undefined, term: Term, value: Value | undefined): boolean {
  if (has === null || has === undefined) return false;
  return (
    term.op === "exists" || compared(has < (value?.text ?? "") ? -1 : has === value?.text ? 0 : 1, term, has, value)
  );
}

function compareId(has: string | null | undefined, term: Term, value: Value | undefined): boolean {
  const digits = (text: string) => text.toLowerCase().replaceAll("-", "");
  if (!has) return false;
  if (term.op === "exists") return true;
  const [a, b] = [digits(has), digits(value?.text ?? "")];
  return term.op === "prefix" ? a.startsWith(b) : a === b;
}

function compareMoment(has: string | null | undefined, term: Term, value: Value | undefined, now: number): boolean {
  if (!has) return false;
  if (term.op === "exists") return true;
  const [a, b] = [Math.floor(ms(has)), momentOf(value?.text ?? "", now)];
  return b !== null && compared(Math.sign(a - b), term, has, value);
}

/** A number is compared with numbers and a text with texts; anything else is left to the server. */
function compareAttribute(has: unknown, term: Term, value: Value | undefined): Verdict {
  if (has === undefined || has === null) return false;
  if (term.op === "exists") return true;
  const text = value?.text ?? "";
  if (!value?.quoted && /^(now|-\d)/i.test(text) && !isNumber(text)) return null;
  const wanted = value?.quoted || term.op === "prefix" ? text : isNumber(text) ? Number(text) : asTruth(text);
  if (typeof wanted !== typeof has) return false;
  if (has === wanted) return compared(0, term, String(has), value);
  return compared((has as string) < (wanted as string) ? -1 : 1, term, String(has), value);
}

function isNumber(text: string): boolean {
  return /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[+-]?\d{1,3})?$/i.test(text);
}

function asTruth(text: string): string | boolean {
  return /^true$/i.test(text) ? true : /^false$/i.test(text) ? false : text;
}

function compared(order: number, term: Term, has: string, value: Value | undefined): boolean {
  switch (term.op) {
    case "=":
      return order === 0;
    case "<":
      return order < 0;
    case "<=":
      return order <= 0;
    case ">":
      return order > 0;
    case ">=":
      return order >= 0;
    case "prefix":
      return has.startsWith(value?.text ?? "");
    default:
      return false;
  }
}
