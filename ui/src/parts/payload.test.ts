// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { brief, storedIn, visible } from "./Payload";

describe("text of users", () => {
  it("shows escape sequences instead of obeying them", () =>
    expect(visible("\u001b[31mred\u001b[0m\u0007")).toBe("␛[31mred␛[0m␇"));
  it("keeps lines and tabs", () => expect(visible("a\n\tb")).toBe("a\n\tb"));
  it("names marks that turn text around", () => expect(visible("\u202egnp")).toBe("⟨U+202E⟩gnp"));
  it("cuts what is long", () => expect(brief("x".repeat(500), 10)).toBe("xxxxxxxxxx…"));
});

describe("stored payloads", () => {
  const reference = { $payload: { href: "/api/v1/payloads/ab", size: 9, media_type: "application/json" } };
  it("are found inside of values", () => expect(storedIn({ a: [1, reference] })).toEqual([reference.$payload]));
  it("lead nowhere but to our own API", () =>
    expect(storedIn({ $payload: { href: "https://elsewhere.example/", size: 1, media_type: "" } })).toEqual([]));
  it("are searched to a bounded depth", () => {
    let deep: unknown = reference;
    for (let n = 0; n < 1000; n += 1) deep = { deep };
    expect(storedIn(deep)).toEqual([]);
  });
});
