/**
 * The query language of runs, read the way the server reads it, with the place of every part.
 *
 * The server decides what a query means; this reading serves the chips, the time brush and live rows. What it cannot read is still sent.
 */
export type TextOp = "=" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "prefix" | "exists";

interface Span {
  start: number;
  end: number;
}

export interface Value extends Span {
  text: string;
  quoted: boolean;
}

export interface Term extends Span {
  kind: "term";
  /** `status`, or `attr.NAME` without quotes. */
  field: string;
  op: TextOp;
  values: Value[];
}

export type Node =
  | Term
  | (Span & { kind: "not"; part: Node })
  | (Span & { kind: "and" | "or"; parts: Node[] })
  /** Words that are no term: searched for as text. */
  | (Span & { kind: "words"; text: string });

export class QueryError extends Error {
  constructor(
    message: string,
    readonly at: number,
  ) {
    super(message);
    this.name = "QueryError";
  }
}

export const STATUSES = ["pending", "running", "success", "failed", "cancelled"] as const;
/** Wait reasons that are stored with a run: those that a query finds. */
export const STORED_WAITS = ["approval", "signal", "event", "promise", "update", "child", "timer", "task", "slot"];
/** Those that are found out when a list is read, by a filter beside the query. */
export const OTHER_WAITS = ["limit", "rate", "retry", "no_worker", "no_worker_for_version", "version", "dependency"];

type Rule = {
  ops: "is" | "order" | "text" | "id";
  exists?: boolean;
  flag?: boolean;
  takes?: (text: string) => boolean;
};

const FIELDS: Record<string, Rule> = {
  status: { ops: "is", takes: (text) => STATUSES.includes(text.toLowerCase() as never) },
  workflow: { ops: "text", exists: true },
  version: { ops: "text", exists: true },
  key: { ops: "text", exists: true },
  error_code: { ops: "text", exists: true },
  id: { ops: "id", takes: isId },
  parent: { ops: "id", exists: true, takes: isId },
  created: { ops: "order", takes: isMoment },
  finished: { ops: "order", exists: true, takes: isMoment },
  waiting_on: { ops: "is", exists: true, takes: (text) => STORED_WAITS.includes(text) || OTHER_WAITS.includes(text) },
  stuck: { ops: "is", flag: true, takes: isTruth },
  paused: { ops: "is", flag: true, takes: isTruth },
};
const ATTRIBUTE_RULE: Rule = { ops: "text", exists: true };
const OPS = {
  is: ["=", "!=", "in"],
  id: ["=", "!=", "in", "prefix"],
  order: ["=", "!=", "<", "<=", ">", ">=", "in"],
  text: ["=", "!=", "<", "<=", ">", ">=", "in", "prefix"],
};
export const FIELD_NAMES = Object.keys(FIELDS);
const KEYWORDS = new Set(["and", "or", "not", "in", "prefix", "exists"]);
const SIGNS: Record<string, TextOp> = {
  "=": "=",
  "==": "=",
  "!=": "!=",
  "<>": "!=",
  "<": "<",
  "<=": "<=",
  ">": ">",
  ">=": ">=",
};
const DEPTH_MAX = 20;

interface Token extends Span {
  kind: "word" | "text" | "sign" | "end";
  text: string;
  isAttribute: boolean;
}

const TOKEN =
  /(?<space>\s+)|(?<sign><=|>=|!=|==|<>|=|<|>|\(|\)|,)|(?<text>(?:attr\.)?"(?:[^"\\]|\\.)*"|(?:attr\.)?'(?:[^'\\]|\\.)*')|(?<word>[^\s()<>=!,"']+)/isuy;

function tokensOf(query: string): Token[] {
  const found: Token[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < query.length) {
    const start = TOKEN.lastIndex;
    const match = TOKEN.exec(query);
    if (!match?.groups) {
      TOKEN.lastIndex = 0;
      throw new QueryError("this text means nothing here", start);
    }
    const span = { start, end: start + match[0].length };
    if (match.groups.text !== undefined) {
      const isAttribute = !/^["']/.test(match[0]);
      const quoted = isAttribute ? match[0].slice("attr.".length) : match[0];
      found.push({ kind: "text", text: quoted.slice(1, -1).replaceAll(/\\(.)/gs, "$1"), isAttribute, ...span });
    } else if (match.groups.space === undefined) {
      found.push({ kind: match.groups.sign ? "sign" : "word", text: match[0], isAttribute: false, ...span });
    }
  }
  found.push({ kind: "end", text: "", isAttribute: false, start: query.length, end: query.length });
  return found;
}

/** Null for an empty query. Throws QueryError. */
export function parseQuery(query: string): Node | null {
  return new Parser(query).parse();
}

/** The tree, or null when the text is no query. */
export function readQuery(query: string): Node | null {
  try {
    return parseQuery(query);
  } catch {
    return null;
  }
}

export function isQuery(query: string): boolean {
  try {
    parseQuery(query);
    return true;
  } catch {
    return false;
  }
}

class Parser {
  private tokens: Token[];
  private at = 0;

  constructor(private query: string) {
    this.tokens = tokensOf(query);
  }

  parse(): Node | null {
    if (this.tokens.length === 1) return null;
    const found = this.or(0);
    if (this.next.kind !== "end") throw new QueryError("expected and, or, or the end of the query", this.next.start);
    return found;
  }

  private get next(): Token {
    return this.tokens[this.at] as Token;
  }

  private take(): Token {
    const token = this.next;
    if (token.kind !== "end") this.at += 1;
    return token;
  }

  private is(word: string): boolean {
    if ((this.next.kind !== "word" && this.next.kind !== "sign") || this.next.text.toLowerCase() !== word) return false;
    this.at += 1;
    return true;
  }

  private or(depth: number): Node {
    const parts = [this.and(depth)];
    while (this.is("or")) parts.push(this.and(depth));
    return joined("or", parts);
  }

  private and(depth: number): Node {
    const parts = [this.one(depth)];
    while (this.is("and")) parts.push(this.one(depth));
    return joined("and", parts);
  }

  private one(depth: number): Node {
    const start = this.next.start;
    if (depth > DEPTH_MAX) throw new QueryError("the query is nested too deeply", start);
    if (this.is("not")) {
      const part = this.one(depth + 1);
      return { kind: "not", part, start, end: part.end };
    }
    if (this.is("(")) {
      const found = this.or(depth + 1);
      const end = this.next.end;
      if (!this.is(")")) throw new QueryError("expected )", this.next.start);
      return { ...found, start, end };
    }
    return this.words() ?? this.term();
  }

  /** A run of words and texts with no operator among them. */
  private words(): Node | null {
    const begin = this.at;
    const first = this.next;
    let end = begin;
    while (isPlain(this.tokens[end])) end += 1;
    const after = this.tokens[end] as Token;
    const alone = after.kind === "end" || /^(and|or|\))$/i.test(after.text);
    const isOne = end === begin + 1;
    if (end === begin || !alone || (isOne && this.isFlag(first))) return null;
    const last = this.tokens[end - 1] as Token;
    this.at = end;
    const text = isOne ? first.text : this.query.slice(first.start, last.end);
    return { kind: "words", text, start: first.start, end: last.end };
  }

  private isFlag(token: Token): boolean {
    return token.kind === "word" && FIELDS[token.text.toLowerCase()]?.flag === true;
  }

  private term(): Node {
    const token = this.take();
    const { field, rule } = this.field(token);
    const after = this.next;
    if (rule.flag && (after.kind === "end" || /^(and|or|\))$/i.test(after.text)))
      return {
        kind: "term",
        field,
        op: "=",
        values: [{ text: "true", quoted: false, start: token.start, end: token.end }],
        start: token.start,
        end: token.end,
      };
    const sign = this.take();
    const word = sign.kind === "text" ? "" : sign.text.toLowerCase();
    const op = (SIGNS[word] ?? (KEYWORDS.has(word) ? word : "")) as TextOp;
    const allowed = op === "exists" ? rule.exists : OPS[rule.ops].includes(op);
    if (!allowed) throw new QueryError(`expected an operator after ${field}`, sign.start);
    const values = op === "exists" ? [] : op === "in" ? this.list(rule) : [this.value(rule)];
    return { kind: "term", field, op, values, start: token.start, end: (this.tokens[this.at - 1] as Token).end };
  }

  private field(token: Token): { field: string; rule: Rule } {
    if (token.isAttribute) return { field: `attr.${token.text}`, rule: ATTRIBUTE_RULE };
    const name = token.text.toLowerCase();
    if (token.kind === "word" && name.startsWith("attr.") && name.length > 5)
      return { field: `attr.${token.text.slice(5)}`, rule: ATTRIBUTE_RULE };
    const rule = token.kind === "word" ? FIELDS[name] : undefined;
    if (!rule) throw new QueryError("expected a field", token.start);
    return { field: name, rule };
  }

  private list(rule: Rule): Value[] {
    if (!this.is("(")) throw new QueryError("expected ( and values", this.next.start);
    const found = [this.value(rule)];
    while (this.is(",")) found.push(this.value(rule));
    if (!this.is(")")) throw new QueryError("expected , or )", this.next.start);
    return found;
  }

  private value(rule: Rule): Value {
    const token = this.next;
    const keyword = token.kind === "word" && /^(and|or|not|in)$/i.test(token.text);
    if ((token.kind !== "word" && token.kind !== "text") || token.isAttribute || keyword)
      throw new QueryError("expected a value", token.start);
    if (rule.takes && !rule.takes(token.text))
      throw new QueryError(`${token.text} is not a value of this field`, token.start);
    this.at += 1;
    return { text: token.text, quoted: token.kind === "text", start: token.start, end: token.end };
  }
}

function isPlain(token: Token | undefined): boolean {
  if (!token || token.isAttribute) return false;
  return token.kind === "text" || (token.kind === "word" && !KEYWORDS.has(token.text.toLowerCase()));
}

function joined(kind: "and" | "or", parts: Node[]): Node {
  const [first] = parts as [Node];
  if (parts.length === 1) return first;
  return { kind, parts, start: first.start, end: (parts.at(-1) as Node).end };
}

function isId(text: string): boolean {
  return /^[0-9a-f-]{1,36}$/i.test(text);
}

function isTruth(text: string): boolean {
  return /^(true|yes|false|no)$/i.test(text);
}

const DURATION = /^-(?=\d)(?:\d+(?:\.\d+)?(?:ms|us|w|d|h|m|s))+$/;
const UNIT_MS: Record<string, number> = {
  us: 0.001,
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  w: 604_800_000,
};

function isMoment(text: string): boolean {
  return momentOf(text, 0) !== null;
}

/** `-2h`, `now`, a date or a time, which is UTC unless it names a zone; in milliseconds. */
export function momentOf(text: string, now: number): number | null {
  if (text.toLowerCase() === "now") return now;
  if (DURATION.test(text)) {
    let back = 0;
    for (const [, n, unit] of text.toLowerCase().matchAll(/(\d+(?:\.\d+)?)(ms|us|w|d|h|m|s)/g))
      back += Number(n) * (UNIT_MS[unit as string] as number);
    return Math.max(0, now - back);
  }
  if (!/^\d{4}-\d\d-\d\d/.test(text)) return null;
  const zoned = /(?:z|[+-]\d\d(?::?\d\d)?)$/i.test(text.slice(10));
  const at = Date.parse(text.length === 10 || zoned ? text : `${text}Z`);
  return Number.isNaN(at) ? null : at;
}

const WORD = /^[^\s()<>=!,"'\\]+$/u;

/** A value as it is written in a query. A text that would read as a number or truth value is quoted. */
export function written(value: string, isText = true): string {
  const plain = WORD.test(value) && !KEYWORDS.has(value.toLowerCase());
  const misread = isText && /^(-?\d|true$|false$|now$)/i.test(value);
  return plain && !misread ? value : `"${value.replaceAll(/["\\]/g, "\\$&")}"`;
}

/** `attr.env`, or `attr."order id"`. */
export function attributeField(name: string): string {
  return WORD.test(name) ? `attr.${name}` : `attr."${name.replaceAll(/["\\]/g, "\\$&")}"`;
}
