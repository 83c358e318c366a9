import { describe, expect, it } from "vitest";
import { attributeField, isQuery, momentOf, parseQuery, QueryError, type Term, written } from "./query";

describe("reading a query", () => {
  it("reads terms with their places", () => {
    const tree = parseQuery('status = failed and attr."order id" prefix "ac me"');
    expect(tree).toMatchObject({ kind: "and" });
    const [status, order] = (tree as unknown as { parts: Term[] }).parts;
    expect(status).toMatchObject({ field: "status", op: "=", start: 0, end: 15 });
    expect(order).toMatchObject({ field: "attr.order id", op: "prefix", values: [{ text: "ac me", quoted: true }] });
  });

  it("binds and tighter than or", () =>
    expect(parseQuery("stuck or paused and key exists")).toMatchObject({
      kind: "or",
      parts: [{ field: "stuck" }, { kind: "and" }],
    }));

  it.each([
    "",
    "status in (failed, cancelled)",
    "NOT (created > -2h OR finished <= 2026-10-21T14:00:00+02:00)",
    "stuck",
    "paused = false and workflow != order",
    "attr.total >= -1.5 and parent exists",
    "id prefix 01a1",
    "connection timeout",
  ])("accepts %s", (text) => expect(isQuery(text)).toBe(true));

  it.each([
    ["status =", 8],
    ["status = faild", 9],
    ["stauts = failed", 0],
    ["status > failed", 7],
    ["(stuck", 6],
    ["created > yesterday", 10],
    ['key = "a', 6],
    ["status = failed workflow = a", 16],
  ])("refuses %s at %i", (text, at) => {
    try {
      parseQuery(text as string);
      expect.unreachable();
    } catch (error) {
      expect(error).toBeInstanceOf(QueryError);
      expect((error as QueryError).at).toBe(at);
    }
  });
});

it("reads moments", () => {
  const now = Date.UTC(2026, 9, 21, 12);
  expect(momentOf("-1d12h", now)).toBe(Date.UTC(2026, 9, 20));
  expect(momentOf("now", now)).toBe(now);
  expect(momentOf("2026-10-21", now)).toBe(Date.UTC(2026, 9, 21));
  expect(momentOf("2026-10-21T14:00", now)).toBe(Date.UTC(2026, 9, 21, 14));
  expect(momentOf("2026-10-21T14:00:00+02:00", now)).toBe(now);
  expect(momentOf("soon", now)).toBeNull();
});

it("writes values so that they are read the same", () => {
  for (const value of ["order", "a b", 'say "hi"', "and", "42", "true", "a\\b", "-2h", "x=y", ""]) {
    const tree = parseQuery(`key = ${written(value)}`) as Term;
    expect(tree.values[0]?.text).toBe(value);
    expect((parseQuery(`${attributeField(value || "n")} = 1`) as Term).field).toBe(`attr.${value || "n"}`);
  }
  expect([written("42"), written("42", false)]).toEqual(['"42"', "42"]);
});
