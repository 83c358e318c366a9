import { describe, expect, it } from "vitest";
import {
  boundsOf,
  checkValue,
  fieldOf,
  initialValue,
  type JsonSchema,
  labelOf,
  parseAny,
  parseNumber,
  resolve,
  Unparsed,
} from "./schema";

const kind = (schema: JsonSchema) => fieldOf(resolve(schema, schema), schema).kind;

describe("how a schema is drawn", () => {
  it.each<[string, JsonSchema]>([
    ["text", { type: "string" }],
    ["number", { type: "integer" }],
    ["truth", { type: "boolean" }],
    ["choice", { enum: ["a", "b"] }],
    ["several", { type: "array", uniqueItems: true, items: { enum: ["a"] } }],
    ["list", { type: "array", items: { type: "string" } }],
    ["date", { type: "string", format: "date" }],
    ["time", { type: "string", format: "date-time" }],
    ["fixed", { const: 3 }],
    ["object", { properties: { a: { type: "string" } } }],
    ["text", { anyOf: [{ type: "string" }, { type: "null" }] }],
    ["number", { type: ["number", "null"] }],
    ["choice", { oneOf: [{ const: "a" }, { const: "b" }] }],
    ["json", { anyOf: [{ type: "string" }, { type: "integer" }] }],
    ["json", { type: "object", additionalProperties: { type: "string" } }],
    ["json", { type: "array", prefixItems: [{ type: "string" }] }],
    ["json", {}],
  ])("%s", (expected, schema) => expect(kind(schema)).toBe(expected));

  it("follows references, and words beside one win", () => {
    const root: JsonSchema = {
      $defs: { Money: { type: "number", minimum: 0, description: "any" } },
      properties: { total: { $ref: "#/$defs/Money", description: "what is paid" } },
    };
    const total = resolve(root.properties?.total, root);
    expect(total).toMatchObject({ type: "number", minimum: 0, description: "what is paid" });
  });

  it("ends in a schema that contains itself", () => {
    const root: JsonSchema = {
      $defs: { Node: { properties: { next: { $ref: "#/$defs/Node" } } } },
      $ref: "#/$defs/Node",
    };
    expect(kind(root)).toBe("object");
    expect(initialValue(root)).toEqual({});
    expect(checkValue(root, { next: { next: { next: { next: { next: { next: { next: {} } } } } } } })).toEqual({});
  });
});

const order: JsonSchema = {
  type: "object",
  required: ["customer", "lines", "express"],
  properties: {
    customer: { type: "string", minLength: 1 },
    currency: { enum: ["EUR", "USD"], default: "EUR" },
    express: { type: "boolean" },
    due: { type: "string", format: "date" },
    discount: { type: "number", minimum: 0, exclusiveMaximum: 1 },
    lines: {
      type: "array",
      minItems: 1,
      items: {
        type: "object",
        required: ["sku", "n"],
        properties: { sku: { type: "string", pattern: "^[A-Z]" }, n: { type: "integer", minimum: 1 } },
      },
    },
    note: { anyOf: [{ type: "string" }, { type: "null" }] },
  },
};

describe("values", () => {
  it("begin with what is required and the defaults", () =>
    expect(initialValue(order)).toEqual({ currency: "EUR", express: false, lines: [] }));

  it("are checked by place", () => {
    expect(
      checkValue(order, {
        customer: "",
        express: false,
        discount: 1,
        currency: "GBP",
        lines: [{ sku: "x", n: 0 }, { sku: "A" }],
      }),
    ).toEqual({
      "/customer": "Required.",
      "/currency": "Choose one of the values.",
      "/discount": "Less than 1.",
      "/lines/0/sku": "Must match ^[A-Z]",
      "/lines/0/n": "At least 1.",
      "/lines/1/n": "Required.",
    });
  });

  it("may be sent when nothing is wrong", () =>
    expect(checkValue(order, { customer: "c", express: true, note: null, lines: [{ sku: "A", n: 1 }] })).toEqual({}));

  it("keep what is typed and not yet a value from being sent", () => {
    expect(checkValue(order, { customer: "c", express: true, lines: new Unparsed("[", "Not JSON") })).toEqual({
      "/lines": "Not JSON",
    });
    expect(checkValue(null, new Unparsed("{", "Not JSON"))).toEqual({ "": "Not JSON" });
    expect(parseNumber("1.5", true)).toBeInstanceOf(Unparsed);
    expect(parseNumber("9007199254740993", true)).toBeInstanceOf(Unparsed);
    expect([parseNumber("", false), parseNumber(" −2.5 ", false)]).toEqual([undefined, -2.5]);
  });
});

it("takes a plain word for a text where anything goes", () => {
  expect(["2026-11-17", "42", '{"a": 1}', "true", ""].map(parseAny)).toEqual([
    "2026-11-17",
    42,
    { a: 1 },
    true,
    undefined,
  ]);
  expect(parseAny('{"a": ')).toBeInstanceOf(Unparsed);
  const untyped: JsonSchema = { properties: { order: {} }, required: ["order"] };
  expect(checkValue(untyped, {})).toEqual({ "/order": "Required." });
});

it("names fields in words", () => {
  expect([
    labelOf("customer_id", {}),
    labelOf("dryRun", { title: "Dry run only" }),
    labelOf("order_id", { title: "Order Id" }),
  ]).toEqual(["Customer id", "Dry run only", "Order id"]);
  expect(boundsOf({ minimum: 1, maximum: 9 })).toBe("1 to 9");
});
