/** What a JSON Schema allows at a path of a document: keys with what they mean, and values. */
import { type Entry, type Path, type Place, valuesUnder } from "./yamlPath";

export type Schema = Record<string, unknown>;

export interface Suggestion {
  label: string;
  detail: string;
  kind: "key" | "value" | "task";
  /** A value of this key is a mapping or a list on lines of its own. */
  opens?: boolean;
}

/** Schemas looked at for one completion; the document's schema refers to itself. */
const SCHEMAS_MAX = 400;
/** Keys whose value is the key of a task or node. */
const REFERENCES = new Set(["depends_on", "then", "else", "on_failure", "start", "from", "to"]);

type Known = (path: Path) => Map<string, string | undefined>;

/** Every schema that may hold for the value at `path`. Conditions (`if`) are decided by the keys that are there. */
export function schemasAt(root: Schema, path: Path, known: Known = () => new Map()): Schema[] {
  let found = expanded(root, [root], known([]));
  path.forEach((part, n) => {
    const inside = known(path.slice(0, n + 1));
    found = expanded(
      root,
      found.flatMap((schema) => step(schema, part)),
      inside,
    );
  });
  return found;
}

function step(schema: Schema, part: string | number): Schema[] {
  if (typeof part === "number") {
    const items = [schema.items, ...((schema.prefixItems as unknown[]) ?? [])];
    return items.filter(isSchema);
  }
  const own = (schema.properties as Record<string, unknown> | undefined)?.[part];
  if (isSchema(own)) return [own];
  return isSchema(schema.additionalProperties) ? [schema.additionalProperties] : [];
}

function isSchema(value: unknown): value is Schema {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The schemas with all that they refer to or are made of. */
function expanded(root: Schema, schemas: Schema[], keys: Map<string, string | undefined>): Schema[] {
  const out: Schema[] = [];
  const seen = new Set<unknown>();
  const open = [...schemas];
  while (open.length > 0 && out.length < SCHEMAS_MAX) {
    const schema = open.shift() as Schema;
    if (seen.has(schema)) continue;
    seen.add(schema);
    out.push(schema);
    const target = typeof schema.$ref === "string" ? resolve(root, schema.$ref) : null;
    if (target) open.push(target);
    for (const word of ["anyOf", "oneOf", "allOf"]) open.push(...((schema[word] as unknown[]) ?? []).filter(isSchema));
    if (isSchema(schema.if)) {
      const chosen = holds(schema.if, keys) ? schema.then : schema.else;
      if (isSchema(chosen)) open.push(chosen);
    }
  }
  return out;
}

function resolve(root: Schema, reference: string): Schema | null {
  let at: unknown = root;
  for (const part of reference.replace(/^#\/?/, "").split("/")) {
    if (part === "") continue;
    at = isSchema(at) ? at[part.replaceAll("~1", "/").replaceAll("~0", "~")] : undefined;
  }
  return isSchema(at) ? at : null;
}

/** Whether a condition about keys and plain values holds. */
function holds(condition: Schema, keys: Map<string, string | undefined>): boolean {
  const required = (condition.required as string[] | undefined) ?? [];
  if (required.some((key) => !keys.has(key))) return false;
  const properties = (condition.properties as Record<string, Schema> | undefined) ?? {};
  return Object.entries(properties).every(([key, wanted]) => !("const" in wanted) || keys.get(key) === wanted.const);
}

function described(root: Schema, schema: unknown): string {
  let at = schema;
  for (let n = 0; n < 8 && isSchema(at); n += 1) {
    if (typeof at.description === "string") return at.description;
    at = typeof at.$ref === "string" ? resolve(root, at.$ref) : null;
  }
  return "";
}

function opensBlock(root: Schema, schema: unknown): boolean {
  if (!isSchema(schema)) return false;
  const all = expanded(root, [schema], new Map());
  const types = new Set(all.flatMap((s) => s.type ?? []));
  return types.has("object") && ["string", "number", "integer", "boolean", "array"].every((t) => !types.has(t));
}

export function keysAt(root: Schema, path: Path, known?: Known): Suggestion[] {
  const out = new Map<string, Suggestion>();
  for (const schema of schemasAt(root, path, known))
    for (const [label, of] of Object.entries((schema.properties as Record<string, unknown>) ?? {}))
      if (!out.has(label) && of !== false && !label.startsWith("$"))
        out.set(label, { label, detail: described(root, of), kind: "key", opens: opensBlock(root, of) });
  return [...out.values()];
}

export function valuesAt(root: Schema, path: Path, known?: Known): Suggestion[] {
  const out = new Map<string, Suggestion>();
  const add = (value: unknown, detail: string) => {
    const label = typeof value === "string" ? value : JSON.stringify(value);
    if (value !== null && value !== "" && !out.has(label)) out.set(label, { label, detail, kind: "value" });
  };
  for (const schema of schemasAt(root, path, known)) {
    for (const value of (schema.enum as unknown[]) ?? []) add(value, "");
    if ("const" in schema) add(schema.const, schema.description === schema.const ? "" : described(root, schema));
    if ([schema.type].flat().includes("boolean")) for (const value of [true, false]) add(value, "");
  }
  return [...out.values()];
}

/** Keys of the tasks or nodes of the body that `path` lies in, without the one it lies in itself. */
export function tasksAround(entries: Entry[], path: Path): string[] {
  const at = path.findLastIndex((part) => part === "tasks" || part === "nodes");
  const body = at >= 0 ? path.slice(0, at + 1) : null;
  const own = at >= 0 ? path[at + 1] : undefined;
  const names = body
    ? [...valuesUnder(entries, body).keys()]
    : ["tasks", "nodes"].flatMap((word) => [...valuesUnder(entries, [...parentBody(path), word]).keys()]);
  return names.filter((name) => name !== own);
}

/** `start` and `edges` stand beside `nodes`. */
function parentBody(path: Path): Path {
  const at = path.lastIndexOf("edges");
  return at >= 0 ? path.slice(0, at) : path.slice(0, -1);
}

/** Whether the value at `path` names a task: `depends_on: a`, `depends_on: [a]`, `then: {approved: a}`. */
export function namesTask(path: Path): boolean {
  const words = path.filter((part): part is string => typeof part === "string");
  const last = words.at(-1) ?? "";
  return REFERENCES.has(last) || words.at(-2) === "then";
}

export function suggestions(root: Schema, entries: Entry[], place: Place): Suggestion[] {
  const known: Known = (path) => valuesUnder(entries, path);
  const out: Suggestion[] = [];
  if (place.at === "key" || place.at === "item") {
    const taken = known(place.path);
    out.push(...keysAt(root, place.path, known).filter((s) => !taken.has(s.label)));
  }
  if (place.at === "value" || place.at === "item") {
    if (namesTask(place.path)) {
      const names = tasksAround(entries, place.path);
      out.push(...names.map((label): Suggestion => ({ label, detail: "task of this flow", kind: "task" })));
    }
    out.push(...valuesAt(root, place.path, known));
  }
  return out;
}
