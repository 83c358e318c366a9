// @vitest-environment jsdom
import { act, useState } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, describe, expect, it } from "vitest";
import { checkValue, type FieldErrors, type JsonSchema, SchemaForm, Unparsed } from "./SchemaForm";

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;
let latest: unknown;

function Host({ schema, first, errors }: { schema: JsonSchema | null; first: unknown; errors?: FieldErrors }) {
  const [value, setValue] = useState(first);
  latest = value;
  return <SchemaForm schema={schema} value={value} onChange={setValue} errors={errors} />;
}

async function draw(schema: JsonSchema | null, first: unknown, errors?: FieldErrors): Promise<HTMLElement> {
  const host = document.createElement("div");
  document.body.append(host);
  latest = first;
  await act(async () => createRoot(host).render(<Host schema={schema} first={first} errors={errors} />));
  return host;
}

function named<T extends HTMLElement>(host: HTMLElement, label: string): T {
  const found = [...host.querySelectorAll("label")].find((l) => l.textContent?.startsWith(label));
  const control = found?.htmlFor ? document.getElementById(found.htmlFor) : found?.querySelector("input");
  if (!control) throw new Error(`no control is named ${label}`);
  return control as T;
}

async function type(control: HTMLElement, text: string): Promise<void> {
  const prototype = Object.getPrototypeOf(control);
  await act(async () => {
    Object.getOwnPropertyDescriptor(prototype, "value")?.set?.call(control, text);
    control.dispatchEvent(new Event(control instanceof HTMLSelectElement ? "change" : "input", { bubbles: true }));
  });
}

async function press(host: HTMLElement, label: string): Promise<void> {
  await act(async () => host.querySelector<HTMLElement>(`[aria-label="${label}"]`)?.click());
}

afterEach(() => document.body.replaceChildren());

const schema: JsonSchema = {
  type: "object",
  required: ["name"],
  properties: {
    name: { type: "string", description: "of the customer" },
    amount: { type: "number", maximum: 10 },
    size: { enum: ["S", "M"] },
    tags: { type: "array", items: { type: "string" } },
    rest: { type: "object" },
    address: { type: "object", properties: { city: { type: "string" } } },
  },
};

describe("a form made from a schema", () => {
  it("writes each kind of value", async () => {
    const host = await draw(schema, {});
    await type(named(host, "Name"), "Ada");
    await type(named(host, "Amount"), "2.5");
    await type(named(host, "Size"), "1");
    await press(host, "Add to Tags");
    await type(named(host, "Tags 1"), "vip");
    await type(named(host, "Rest"), '{"a": [1]}');
    await press(host, "Add Address");
    await type(named(host, "City"), "Turin");
    expect(latest).toEqual({
      name: "Ada",
      amount: 2.5,
      size: "M",
      tags: ["vip"],
      rest: { a: [1] },
      address: { city: "Turin" },
    });
  });

  it("leaves out an optional field that is emptied, and keeps fields that it does not draw", async () => {
    const host = await draw(schema, { name: "Ada", amount: 1, unknown: true });
    await type(named(host, "Amount"), "");
    expect(latest).toEqual({ name: "Ada", unknown: true });
  });

  it("keeps a half-typed number and says what is wrong", async () => {
    const host = await draw(schema, { name: "Ada" });
    const amount = named<HTMLInputElement>(host, "Amount");
    await type(amount, "1e");
    expect(amount.value).toBe("1e");
    expect((latest as { amount: unknown }).amount).toBeInstanceOf(Unparsed);
    expect(amount.getAttribute("aria-invalid")).toBe("true");
    expect(host.textContent).toContain("Must be a number.");
    expect(checkValue(schema, latest)).toEqual({ "/amount": "Must be a number." });
  });

  it("shows the errors it is given beside their field", async () => {
    const host = await draw(schema, {}, { "/name": "Required." });
    const error = document.getElementById(named(host, "Name").getAttribute("aria-describedby")?.split(" ")[1] ?? "");
    expect(error?.textContent).toBe("Required.");
  });

  it("takes any JSON without a schema", async () => {
    const host = await draw(null, undefined);
    await type(named(host, "Input"), "[1, 2");
    expect(latest).toBeInstanceOf(Unparsed);
    await type(named(host, "Input"), "[1, 2]");
    expect(latest).toEqual([1, 2]);
  });
});
