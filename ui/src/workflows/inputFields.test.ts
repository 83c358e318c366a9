import { expect, it } from "vitest";
import { fieldsOf } from "./inputFields";

it("reads the fields of a schema", () => {
  const schema = {
    type: "object",
    properties: {
      day: { type: "string", format: "date" },
      size: { anyOf: [{ type: "integer" }, { type: "null" }], default: 5 },
      tags: { type: "array", items: { type: "string" } },
      mode: { enum: ["fast", "safe"], description: "How." },
      order: { $ref: "#/$defs/Order" },
      other: {},
    },
    required: ["day"],
    $defs: { Order: { type: "object", description: "An order." } },
  };
  expect(fieldsOf(schema).map((f) => [f.name, f.type, f.required, f.description])).toEqual([
    ["day", "string (date)", true, ""],
    ["size", "integer | null", false, ""],
    ["tags", "list of string", false, ""],
    ["mode", '"fast" | "safe"', false, "How."],
    ["order", "object", false, "An order."],
    ["other", "any", false, ""],
  ]);
});

it("has none for what is no object", () => expect(fieldsOf({ type: "string" })).toEqual([]));
