/**
 * What a JSON Schema asks for, as fields of a form: how a value is drawn, what it is at first, and what is wrong with it.
 *
 * Only what a person can fill in is drawn. The rest (choices of shapes, maps, tuples, recursion) becomes one field of JSON text.
 * The server checks everything again; the checks here only say it sooner.
 */
export type JsonSchema = {
  [key: string]: unknown;
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, JsonSchema | boolean>;
  required?: string[];
  items?: JsonSchema | boolean;
  enum?: unknown[];
  default?: unknown;
  format?: string;
};

/** Messages by JSON pointer: "" is the whole value, "/lines/0/sku" a field of it. */
export type FieldErrors = Record<string, string>;

/** A text that stands in a field and is not a value of its kind yet. It is never sent. */
export class Unparsed {
  constructor(
    readonly text: string,
    readonly message: string,
  ) {}
}

export type Field =
  | { kind: "text"; long: boolean; secret: boolean }
  | { kind: "number"; integer: boolean }
  | { kind: "truth" }
  | { kind: "choice"; options: unknown[] }
  | { kind: "several"; options: unknown[] }
  | { kind: "date" }
  | { kind: "time" }
  | { kind: "fixed"; value: unknown }
  | { kind: "list"; item: JsonSchema }
  | { kind: "object"; fields: { name: string; schema: JsonSchema; required: boolean }[] }
  /** `any`: the schema says nothing about the value, so a plain word is a text. */
  | { kind: "json"; any?: boolean };

const DEPTH_MAX = 6;
const LONG_TEXT_CHARS = 200;
const CHOICES_MAX = 200;

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Unparsed);
}

function isNull(schema: unknown): boolean {
  return isObject(schema) && (schema.type === "null" || schema.const === null);
}

function lookUp(root: JsonSchema, ref: string): JsonSchema | null {
  if (!ref.startsWith("#")) return null;
  let at: unknown = root;
  for (const part of ref.slice(1).split("/").slice(1)) {
    if (!isObject(at)) return null;
    at = at[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")];
  }
  return isObject(at) ? (at as JsonSchema) : null;
}

/** Follow references, and see through `allOf` of one schema and "this or null". Words beside a reference win. */
export function resolve(schema: JsonSchema | boolean | undefined, root: JsonSchema, depth = 0): JsonSchema {
  if (!isObject(schema) || depth > DEPTH_MAX) return {};
  const { $ref, allOf, anyOf, oneOf, ...own } = schema as JsonSchema & Record<string, unknown>;
  const inner = (found: unknown, nullable = false): JsonSchema => {
    const resolved = { ...resolve(found as JsonSchema, root, depth + 1), ...own };
    return nullable ? { ...resolved, nullable: true } : resolved;
  };
  if (typeof $ref === "string") {
    const found = lookUp(root, $ref);
    return found ? inner(found) : own;
  }
  if (Array.isArray(allOf) && allOf.length === 1) return inner(allOf[0]);
  const choices = Array.isArray(anyOf) ? anyOf : Array.isArray(oneOf) ? oneOf : null;
  if (choices && !allOf) {
    const real = choices.filter((choice) => !isNull(choice));
    if (real.length === 1) return inner(real[0], choices.length > real.length);
    if (real.every((choice) => isObject(choice) && "const" in choice))
      return { ...own, enum: real.map((choice) => (choice as JsonSchema).const) };
  }
  return schema as JsonSchema;
}

export function isNullable(schema: JsonSchema): boolean {
  return schema.nullable === true || (Array.isArray(schema.type) && schema.type.includes("null"));
}

function typeOf(schema: JsonSchema): string {
  if (typeof schema.type === "string") return schema.type;
  if (Array.isArray(schema.type)) {
    const real = schema.type.filter((type) => type !== "null");
    return real.length === 1 ? (real[0] as string) : "";
  }
  return schema.properties ? "object" : "";
}

/** How a schema is drawn. It must be resolved. */
export function fieldOf(schema: JsonSchema, root: JsonSchema, depth = 0): Field {
  if ("const" in schema) return { kind: "fixed", value: schema.const };
  if (Array.isArray(schema.enum) && schema.enum.length > 0)
    return { kind: "choice", options: schema.enum.filter((value) => value !== null).slice(0, CHOICES_MAX) };
  if (schema.anyOf || schema.oneOf || schema.allOf || schema.if || schema.not) return { kind: "json" };
  switch (typeOf(schema)) {
    case "string":
      return textField(schema);
    case "integer":
    case "number":
      return { kind: "number", integer: typeOf(schema) === "integer" };
    case "boolean":
      return { kind: "truth" };
    case "array":
      return listField(schema, root, depth);
    case "object":
      return objectField(schema, root, depth);
    default:
      return schema.type === undefined ? { kind: "json", any: true } : { kind: "json" };
  }
}

function textField(schema: JsonSchema): Field {
  if (schema.format === "date") return { kind: "date" };
  if (schema.format === "date-time") return { kind: "time" };
  const most = typeof schema.maxLength === "number" ? schema.maxLength : 0;
  const long = most > LONG_TEXT_CHARS || schema.format === "textarea" || typeof schema.contentMediaType === "string";
  return { kind: "text", long, secret: schema.format === "password" || schema.writeOnly === true };
}

function listField(schema: JsonSchema, root: JsonSchema, depth: number): Field {
  if (!isObject(schema.items) || schema.prefixItems || depth >= DEPTH_MAX) return { kind: "json" };
  const item = resolve(schema.items as JsonSchema, root);
  const drawn = fieldOf(item, root, depth + 1);
  if (drawn.kind === "json") return { kind: "json" };
  if (drawn.kind === "choice" && schema.uniqueItems) return { kind: "several", options: drawn.options };
  return { kind: "list", item };
}

function objectField(schema: JsonSchema, root: JsonSchema, depth: number): Field {
  const names = Object.keys(schema.properties ?? {});
  if (names.length === 0 || depth >= DEPTH_MAX) return { kind: "json" };
  const required = new Set(schema.required ?? []);
  return {
    kind: "object",
    fields: names.map((name) => ({
      name,
      schema: resolve(schema.properties?.[name], root),
      required: required.has(name),
    })),
  };
}

/** What a form begins with: the defaults, and the objects and lists that must be there. */
export function initialValue(schema: JsonSchema | null | undefined): unknown {
  return schema ? initial(resolve(schema, schema), schema, 0, true) : undefined;
}

function initial(schema: JsonSchema, root: JsonSchema, depth: number, required: boolean): unknown {
  if ("default" in schema) return structuredClone(schema.default);
  const field = fieldOf(schema, root, depth);
  if (!required) return undefined;
  if (field.kind === "fixed") return field.value;
  if (field.kind === "truth") return false;
  if (field.kind === "list" || field.kind === "several") return [];
  if (field.kind !== "object") return undefined;
  const made: Record<string, unknown> = {};
  for (const part of field.fields) {
    const value = initial(part.schema, root, depth + 1, part.required);
    if (value !== undefined) made[part.name] = value;
  }
  return made;
}

/** A new item of a list, so that its fields can be filled in. */
export function newItem(item: JsonSchema, root: JsonSchema): unknown {
  const value = initial(item, root, 1, true);
  return value === undefined && fieldOf(item, root).kind === "text" ? "" : (value ?? null);
}

/** All that is wrong with a value, by place. An empty object means: send it. */
export function checkValue(schema: JsonSchema | null | undefined, value: unknown): FieldErrors {
  const errors: FieldErrors = {};
  if (schema) check(resolve(schema, schema), schema, value, "", true, errors, 0);
  else if (value instanceof Unparsed) errors[""] = value.message;
  return errors;
}

export function pointer(parent: string, part: string | number): string {
  return `${parent}/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`;
}

function check(
  schema: JsonSchema,
  root: JsonSchema,
  value: unknown,
  at: string,
  required: boolean,
  errors: FieldErrors,
  depth: number,
): void {
  if (value instanceof Unparsed) {
    errors[at] = value.message;
    return;
  }
  if (value === undefined) {
    if (required && !isNullable(schema) && at) errors[at] = "Required.";
    return;
  }
  if (value === null && isNullable(schema)) return;
  const field = fieldOf(schema, root, depth);
  const wrong = wrongWith(schema, field, value);
  if (wrong) {
    errors[at] = wrong;
    return;
  }
  if (field.kind === "object") {
    for (const part of field.fields) {
      const inner = (value as Record<string, unknown>)[part.name];
      check(part.schema, root, inner, pointer(at, part.name), part.required, errors, depth + 1);
    }
  } else if (field.kind === "list") {
    (value as unknown[]).forEach((item, n) => {
      check(field.item, root, item, pointer(at, n), true, errors, depth + 1);
    });
  }
}

function wrongWith(schema: JsonSchema, field: Field, value: unknown): string | null {
  switch (field.kind) {
    case "text":
    case "date":
    case "time":
      return wrongText(schema, value);
    case "number":
      return wrongNumber(schema, field.integer, value);
    case "truth":
      return typeof value === "boolean" ? null : "Must be true or false.";
    case "choice":
      return field.options.some((option) => same(option, value)) ? null : "Choose one of the values.";
    case "list":
    case "several":
      return wrongList(schema, value);
    case "object":
      return isObject(value) ? null : "Must be an object.";
    default:
      return null;
  }
}

function wrongText(schema: JsonSchema, value: unknown): string | null {
  if (typeof value !== "string") return "Must be a text.";
  const { minLength, maxLength, pattern } = schema;
  if (typeof minLength === "number" && value.length < minLength)
    return minLength === 1 ? "Required." : `At least ${minLength} characters.`;
  if (typeof maxLength === "number" && value.length > maxLength) return `At most ${maxLength} characters.`;
  if (typeof pattern === "string" && fails(pattern, value)) return `Must match ${pattern}`;
  return null;
}

function fails(pattern: string, value: string): boolean {
  try {
    return !new RegExp(pattern, "u").test(value);
  } catch {
    return false; // a pattern of another dialect: the server checks it
  }
}

function wrongNumber(schema: JsonSchema, integer: boolean, value: unknown): string | null {
  if (typeof value !== "number" || !Number.isFinite(value)) return "Must be a number.";
  if (integer && !Number.isInteger(value)) return "Must be a whole number.";
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf } = schema;
  if (typeof minimum === "number" && value < minimum) return `At least ${minimum}.`;
  if (typeof maximum === "number" && value > maximum) return `At most ${maximum}.`;
  if (typeof exclusiveMinimum === "number" && value <= exclusiveMinimum) return `More than ${exclusiveMinimum}.`;
  if (typeof exclusiveMaximum === "number" && value >= exclusiveMaximum) return `Less than ${exclusiveMaximum}.`;
  if (typeof multipleOf === "number" && multipleOf > 0) {
    const steps = value / multipleOf;
    if (Math.abs(steps - Math.round(steps)) > 1e-9) return `Must be a multiple of ${multipleOf}.`;
  }
  return null;
}

function wrongList(schema: JsonSchema, value: unknown): string | null {
  if (!Array.isArray(value)) return "Must be a list.";
  const { minItems, maxItems } = schema;
  if (typeof minItems === "number" && value.length < minItems)
    return `At least ${minItems} ${minItems === 1 ? "item" : "items"}.`;
  if (typeof maxItems === "number" && value.length > maxItems) return `At most ${maxItems} items.`;
  return null;
}

export function same(a: unknown, b: unknown): boolean {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}

/** "customer_id" and "customerId" as words. */
export function labelOf(name: string, schema: JsonSchema): string {
  if (schema.title && schema.title.toLowerCase() !== name.replaceAll("_", " ").toLowerCase()) return schema.title;
  const words = name
    .replaceAll(/([a-z0-9])([A-Z])/g, "$1 $2")
    .replaceAll(/[_-]+/g, " ")
    .trim()
    .toLowerCase();
  return words ? words.charAt(0).toUpperCase() + words.slice(1) : name;
}

/** What a field takes, in a few words, for what the description does not say. */
export function boundsOf(schema: JsonSchema): string {
  const { minimum, maximum, minLength, maxLength } = schema;
  if (typeof minimum === "number" && typeof maximum === "number") return `${minimum} to ${maximum}`;
  if (typeof minimum === "number") return `at least ${minimum}`;
  if (typeof maximum === "number") return `at most ${maximum}`;
  if (typeof minLength === "number" && minLength > 1) return `at least ${minLength} characters`;
  if (typeof maxLength === "number" && maxLength <= LONG_TEXT_CHARS) return `at most ${maxLength} characters`;
  return "";
}

/** JSON text as a value, or why it is none. Nothing typed is no value. */
export function parseJson(text: string): unknown {
  if (text.trim() === "") return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    return new Unparsed(text, `Not JSON: ${(error as Error).message.replace(/^JSON\.parse: /, "")}`);
  }
}

/** JSON if it parses, else a text, as the command line takes it. What begins like JSON must be JSON. */
export function parseAny(text: string): unknown {
  const value = parseJson(text);
  return value instanceof Unparsed && !/^\s*[[{"]/.test(text) ? text : value;
}

export function parseNumber(text: string, integer: boolean): unknown {
  const trimmed = text.trim().replace("−", "-");
  if (trimmed === "") return undefined;
  const value = Number(trimmed);
  if (!Number.isFinite(value)) return new Unparsed(text, "Must be a number.");
  if (integer && !Number.isInteger(value)) return new Unparsed(text, "Must be a whole number.");
  if (Number.isInteger(value) && !Number.isSafeInteger(value))
    return new Unparsed(text, "Too large to be kept exactly; use a text or JSON.");
  return value;
}
