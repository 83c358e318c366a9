/** The fields of an input's JSON Schema, for a table. */

export interface InputField {
  name: string;
  type: string;
  required: boolean;
  default?: unknown;
  description: string;
}

type Schema = Record<string, unknown>;

export function fieldsOf(schema: Schema): InputField[] {
  const root = pointed(schema, schema);
  const required = new Set((root.required as string[] | undefined) ?? []);
  return Object.entries((root.properties as Record<string, Schema> | undefined) ?? {}).map(([name, field]) => ({
    name,
    type: typeOf(schema, field),
    required: required.has(name),
    default: field.default,
    description: String(field.description ?? pointed(schema, field).description ?? ""),
  }));
}

function pointed(root: Schema, schema: Schema): Schema {
  if (typeof schema.$ref !== "string") return schema;
  let at: unknown = root;
  for (const part of schema.$ref.replace(/^#\/?/, "").split("/").filter(Boolean))
    at = (at as Schema | undefined)?.[part];
  return (at as Schema | undefined) ?? {};
}

/** string, integer | null, list of string, one of "a", "b". */
export function typeOf(root: Schema, given: Schema, depth = 0): string {
  const schema = pointed(root, given);
  if (depth > 3) return "…";
  if (Array.isArray(schema.enum)) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  const several = (schema.anyOf ?? schema.oneOf) as Schema[] | undefined;
  if (several) return [...new Set(several.map((s) => typeOf(root, s, depth + 1)))].join(" | ");
  if (schema.type === "array") {
    return schema.items ? `list of ${typeOf(root, schema.items as Schema, depth + 1)}` : "list";
  }
  const word = [schema.type].flat().filter(Boolean).join(" | ") || "any";
  return schema.format ? `${word} (${String(schema.format)})` : word;
}
