/**
 * The query text as chips, and changes to it by pointing.
 *
 * The text is the only state. A chip knows which part of the text it stands for, so a change of one leaves the others as they were
 * typed. What chips cannot say (or, parentheses) is one chip that shows its text.
 */
import { clockMinutes, time } from "../format/times";
import { momentOf, type Node, OTHER_WAITS, readQuery, STORED_WAITS, type Term, written } from "./query";

export interface Part {
  start: number;
  end: number;
  node: Node;
}

export interface Chip {
  name: string;
  value: string;
  /** The parts of the text that it stands for. */
  parts: { start: number; end: number }[];
}

/** What all matches have in common: the parts of the text that are joined by `and`. Null when it is no query. */
export function partsOf(text: string): Part[] | null {
  if (text.trim() === "") return [];
  const tree = readQuery(text);
  if (!tree) return null;
  return (tree.kind === "and" ? tree.parts : [tree]).map((node) => ({ start: node.start, end: node.end, node }));
}

const NAMES: Record<string, string> = {
  status: "Status",
  workflow: "Workflow",
  version: "Version",
  key: "Key",
  id: "Run",
  parent: "Parent",
  created: "Created",
  finished: "Finished",
  error_code: "Error code",
  waiting_on: "Waiting on",
  stuck: "Stuck",
  paused: "Paused",
};

export function fieldLabel(field: string): string {
  return NAMES[field] ?? field.replace(/^attr\./, "");
}

export function chipsOf(text: string, now: number): Chip[] {
  const parts = partsOf(text);
  if (parts === null) return [{ name: "Query", value: text.trim(), parts: [{ start: 0, end: text.length }] }];
  const range = rangeChip(parts, now);
  // In the order of the text; the range stands where its first end does.
  return parts.flatMap((part) => {
    const place = range?.parts.findIndex((used) => used.start === part.start) ?? -1;
    if (range && place >= 0) return place === 0 ? [range] : [];
    return [{ ...inWords(part.node, text, now), parts: [part] }];
  });
}

/** `created >= a and created < b` is one chip. */
function rangeChip(parts: Part[], now: number): Chip | null {
  const from = parts.find((part) => isBound(part.node, [">", ">="]));
  const to = parts.find((part) => isBound(part.node, ["<", "<="]));
  if (!from || !to) return null;
  const [a, b] = [from, to].map((part) => momentOf((part.node as Term).values[0]?.text ?? "", now) ?? 0) as [
    number,
    number,
  ];
  const sameDay = new Date(a).toDateString() === new Date(b).toDateString();
  return {
    name: "Created",
    value: `${moment(a, now)} – ${sameDay ? clockMinutes(b) : moment(b, now)}`,
    parts: [from, to].sort((one, other) => one.start - other.start),
  };
}

function moment(at: number, now: number): string {
  const today = new Date(at).toDateString() === new Date(now).toDateString();
  return today ? clockMinutes(at) : time(at, now);
}

export function isBound(node: Node, ops: string[]): node is Term {
  return node.kind === "term" && node.field === "created" && ops.includes(node.op);
}

function inWords(node: Node, text: string, now: number): { name: string; value: string } {
  if (node.kind === "words") return { name: "Text", value: node.text };
  if (node.kind === "not" && node.part.kind === "term" && node.part.op !== "!=") {
    const inner = inWords(node.part, text, now);
    return { name: `${inner.name} not`, value: inner.value };
  }
  if (node.kind !== "term") return { name: "Query", value: text.slice(node.start, node.end) };
  return termInWords(node, now);
}

function termInWords({ field, op, values }: Term, now: number): { name: string; value: string } {
  const name = fieldLabel(field);
  const first = values[0]?.text ?? "";
  if (op === "exists") return { name, value: "exists" };
  if (field === "stuck" || field === "paused") {
    const yes = /^(true|yes)$/i.test(first) === (op !== "!=");
    return { name, value: yes ? "yes" : "no" };
  }
  if (field === "created" || field === "finished") return momentInWords(name, op, first, now);
  const value = values.map((v) => v.text.replaceAll("_", field === "waiting_on" ? " " : "_")).join(", ");
  const signs: Record<string, string> = { "=": "", in: "", "!=": " is not", prefix: " begins with" };
  return { name: `${name}${signs[op] ?? ` ${op}`}`, value };
}

const UNITS: Record<string, string> = { s: "seconds", m: "minutes", h: "hours", d: "days", w: "weeks" };

function momentInWords(name: string, op: string, text: string, now: number): { name: string; value: string } {
  const simple = /^-(\d+)([smhdw])$/i.exec(text);
  const span = simple ? `${simple[1]} ${unitWord(Number(simple[1]), simple[2] as string)}` : text.slice(1);
  if (text.startsWith("-") && op.startsWith(">")) return { name, value: `last ${span}` };
  if (text.startsWith("-") && op.startsWith("<")) return { name, value: `over ${span} ago` };
  const at = momentOf(text, now);
  const words: Record<string, string> = { ">": "after", ">=": "since", "<": "before", "<=": "until" };
  return { name: `${name} ${words[op] ?? op}`, value: at === null ? text : time(at, now) };
}

function unitWord(n: number, unit: string): string {
  const word = UNITS[unit.toLowerCase()] ?? unit;
  return n === 1 ? word.slice(0, -1) : word;
}

/** The text without some of its parts; the others stay as they were written. */
export function withoutParts(text: string, gone: { start: number; end: number }[]): string {
  const parts = partsOf(text);
  if (!parts) return "";
  return parts
    .filter((part) => !gone.some((one) => one.start === part.start))
    .map((part) => text.slice(part.start, part.end))
    .join(" and ");
}

/** The text and one more condition. What would bind otherwise goes into parentheses. */
export function withTerm(text: string, term: string): string {
  const old = text.trim();
  if (!old) return term;
  const tree = readQuery(old);
  const open = tree?.kind === "or" && !(old.startsWith("(") && tree.parts[0]?.start !== tree.start);
  return `${open ? `(${old})` : old} and ${term}`;
}

function partOfField(text: string, field: string, ops: string[]): (Part & { node: Term }) | undefined {
  return partsOf(text)?.find(
    (part): part is Part & { node: Term } =>
      part.node.kind === "term" && part.node.field === field && ops.includes(part.node.op),
  );
}

/** Values of a field that are asked for now. */
export function valuesOf(text: string, field: string): string[] {
  return partOfField(text, field, ["=", "in"])?.node.values.map((value) => value.text) ?? [];
}

/** Ask for one value more of a field, or, if it is asked for already, for it no longer. */
export function toggleValue(text: string, field: string, value: string): string {
  const part = partOfField(text, field, ["=", "in"]);
  if (!part) return withTerm(text, `${field} = ${written(value)}`);
  const had = part.node.values.map((v) => v.text);
  const next = had.includes(value) ? had.filter((v) => v !== value) : [...had, value];
  if (next.length === 0) return withoutParts(text, [part]);
  const said = next.map((v) => written(v));
  const term = next.length === 1 ? `${field} = ${said[0]}` : `${field} in (${said.join(", ")})`;
  return text.slice(0, part.start) + term + text.slice(part.end);
}

/** Like toggleValue for a field that a list is filtered by with one value at most. */
export function chooseValue(text: string, field: string, value: string): string {
  const part = partOfField(text, field, ["=", "in"]);
  const term = `${field} = ${written(value)}`;
  return part ? text.slice(0, part.start) + term + text.slice(part.end) : withTerm(text, term);
}

export interface RunsRequest {
  query: string;
  q?: string;
  waiting_on?: string;
}

/**
 * What the API is asked. Free words and wait reasons that are not stored are parameters beside the query; in the query blanks stand in
 * their place, so that the places which an error names are those of the text.
 */
export function requestOf(text: string): RunsRequest {
  const parts = partsOf(text);
  if (!parts) return { query: text };
  const words = parts.find((part) => part.node.kind === "words");
  const other = parts.find((part) => isOtherWait(part.node));
  const beside = [words, other].filter((part) => part !== undefined);
  if (beside.length === 0) return { query: text.trim() === "" ? "" : text };
  const kept = parts.filter((part) => !beside.includes(part));
  let query = "";
  for (const [n, part] of kept.entries()) {
    const joint = n === 0 ? "" : " and ";
    query = (query + joint).padEnd(part.start) + text.slice(part.start, part.end);
  }
  const request: RunsRequest = { query };
  if (words?.node.kind === "words") request.q = words.node.text;
  if (other?.node.kind === "term") request.waiting_on = other.node.values[0]?.text;
  return request;
}

function isOtherWait(node: Node): boolean {
  if (node.kind !== "term" || node.field !== "waiting_on" || node.op !== "=") return false;
  return OTHER_WAITS.includes(node.values[0]?.text ?? "");
}

/** Whether a bulk job and a saved view can take it: they take a query alone. */
export function isPureQuery(request: RunsRequest): boolean {
  return !request.q && !request.waiting_on;
}

export const ALL_WAITS = [...STORED_WAITS, ...OTHER_WAITS];

/** The only workflow that matches can have, for numbers that are kept by workflow. */
export function workflowOf(text: string): string {
  const values = valuesOf(text, "workflow");
  return values.length === 1 ? (values[0] as string) : "";
}

export interface Mistake {
  message: string;
  at: number | null;
}

/** The message and place of a problem that the server found in a query. */
export function mistakeOf(detail: string): Mistake {
  const found = /^query, character (\d+): ([^\n]*)/.exec(detail);
  return found ? { message: found[2] as string, at: Number(found[1]) - 1 } : { message: detail, at: null };
}
