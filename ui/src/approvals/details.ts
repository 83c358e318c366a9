/** What an approval is about, laid out: short values as facts, lists of objects as tables, the rest as JSON. */

export type Scalar = string | number | boolean | null;

export interface FactTable {
  title: string;
  /** Numbers, and texts that are amounts, are right-aligned; ids are in the font of code. */
  columns: { name: string; isNumber: boolean; isCode: boolean }[];
  rows: Record<string, unknown>[];
}

export interface Layout {
  facts: [string, Scalar][];
  tables: FactTable[];
  rest: [string, unknown][];
}

const COLUMNS_MAX = 7;
const FACT_CHARS = 200;

export function layout(details: unknown): Layout {
  const out: Layout = { facts: [], tables: [], rest: [] };
  if (details === null || details === undefined) return out;
  if (isTable(details)) return { ...out, tables: [tableOf("Details", details)] };
  if (!isObject(details)) return { ...out, rest: [["Details", details]] };
  for (const [name, value] of Object.entries(details)) {
    if (isScalar(value)) out.facts.push([name, value]);
    else if (isTable(value)) out.tables.push(tableOf(labelOf(name), value));
    else out.rest.push([labelOf(name), value]);
  }
  return out;
}

function isScalar(value: unknown): value is Scalar {
  if (typeof value === "string") return value.length <= FACT_CHARS && !value.includes("\n");
  return value === null || typeof value === "number" || typeof value === "boolean";
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isTable(value: unknown): value is Record<string, unknown>[] {
  return Array.isArray(value) && value.length > 0 && value.every(isObject) && columnsOf(value).length <= COLUMNS_MAX;
}

const AMOUNT = /^[\p{Sc}\u2212+-]*\s?\d[\d.,\u00a0 ]*\s?[\p{Sc}%]?$/u;
const CODE = /^[A-Za-z]{1,6}[-_#]?\d[\w-]*$/;

function isAmount(value: unknown): boolean {
  return typeof value === "number" || (typeof value === "string" && AMOUNT.test(value));
}

function columnsOf(rows: Record<string, unknown>[]): string[] {
  return [...new Set(rows.flatMap((row) => Object.keys(row)))];
}

function tableOf(title: string, rows: Record<string, unknown>[]): FactTable {
  const columns = columnsOf(rows).map((name) => ({
    name,
    isNumber: rows.every((row) => row[name] === undefined || row[name] === null || isAmount(row[name])),
    isCode: rows.every((row) => typeof row[name] === "string" && CODE.test(row[name])),
  }));
  return { title, columns, rows };
}

/** `already_refunded` is "Already refunded". */
export function labelOf(name: string): string {
  const words = name.replaceAll(/[_-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1) || name;
}

/** Numbers with their digits grouped; texts as they are. */
export function shownScalar(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return value.toLocaleString("en-US", { maximumFractionDigits: 6 }).replace("-", "−");
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "string" ? value : JSON.stringify(value);
}
