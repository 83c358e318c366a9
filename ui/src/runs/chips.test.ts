import { describe, expect, it } from "vitest";
import {
  chipsOf,
  chooseValue,
  isPureQuery,
  mistakeOf,
  partsOf,
  requestOf,
  toggleValue,
  valuesOf,
  withoutParts,
  withTerm,
  workflowOf,
} from "./chips";

const now = new Date(2026, 9, 21, 14).getTime();
const said = (text: string) => chipsOf(text, now).map((chip) => `${chip.name}: ${chip.value}`);

describe("chips", () => {
  it("say terms in words", () =>
    expect(
      said("status in (failed, cancelled) and workflow != heartbeat and attr.env = prod and created > -6h and stuck"),
    ).toEqual([
      "Status: failed, cancelled",
      "Workflow is not: heartbeat",
      "env: prod",
      "Created: last 6 hours",
      "Stuck: yes",
    ]));

  it("join both ends of a time range", () => {
    const text = `created >= ${new Date(2026, 9, 21, 9).toISOString()} and created < ${new Date(2026, 9, 21, 10, 30).toISOString()}`;
    expect(said(text)).toEqual(["Created: 09:00 – 10:30"]);
    expect(chipsOf(text, now)[0]?.parts).toHaveLength(2);
  });

  it.each([
    "status = failed or stuck",
    "workflow = a or (created > -2h and not attr.n > 5)",
    "stauts = failed",
    "status = failed and",
    "((",
  ])("show %s as one chip that keeps its text", (text) => {
    expect(said(text)).toEqual([`Query: ${text}`]);
    expect(withoutParts(text, chipsOf(text, now)[0]?.parts ?? [])).toBe("");
  });

  it("show a nested part as its text", () =>
    expect(said("workflow = a and (stuck or paused)")).toEqual(["Workflow: a", "Query: (stuck or paused)"]));

  it("show free words as a search", () => expect(said("order-17")).toEqual(["Text: order-17"]));
});

describe("a change of one chip", () => {
  const text = 'status  =  failed   AND (stuck OR paused) and attr."a b" = "x and y"';

  it("leaves the others as they were typed", () => {
    const [first, second, third] = partsOf(text) ?? [];
    expect(withoutParts(text, [first!])).toBe('(stuck OR paused) and attr."a b" = "x and y"');
    expect(withoutParts(text, [second!, third!])).toBe("status  =  failed");
    expect(toggleValue(text, "status", "cancelled")).toBe(
      'status in (failed, cancelled)   AND (stuck OR paused) and attr."a b" = "x and y"',
    );
  });

  it("takes values back", () => {
    const two = toggleValue("status = failed", "status", "cancelled");
    expect(two).toBe("status in (failed, cancelled)");
    expect(valuesOf(two, "status")).toEqual(["failed", "cancelled"]);
    expect(toggleValue(two, "status", "failed")).toBe("status = cancelled");
    expect(toggleValue("status = failed and stuck", "status", "failed")).toBe("stuck");
    expect(chooseValue(two, "status", "running")).toBe("status = running");
  });

  it("puts what would bind otherwise into parentheses", () => {
    expect(withTerm("stuck or paused", "key exists")).toBe("(stuck or paused) and key exists");
    expect(withTerm("(stuck or paused)", "key exists")).toBe("(stuck or paused) and key exists");
    expect(withTerm("(stuck) or (paused)", "key exists")).toBe("((stuck) or (paused)) and key exists");
    expect(withTerm("stuck", "key exists")).toBe("stuck and key exists");
    expect(withTerm(" ", "stuck")).toBe("stuck");
  });
});

describe("what the API is asked", () => {
  it("is the query itself", () => {
    for (const text of ["", "status = failed", "a = b =", "status = failed or stuck"])
      expect(requestOf(text)).toEqual({ query: text });
  });

  it("has free words beside it, and places stay as typed", () => {
    expect(requestOf("connection timeout")).toEqual({ query: "", q: "connection timeout" });
    const text = "order-17 and status = failed and stuck";
    const request = requestOf(text);
    expect(request.q).toBe("order-17");
    expect(request.query.trim()).toBe("status = failed and stuck");
    expect(request.query.indexOf("stuck")).toBe(text.indexOf("stuck"));
    expect([isPureQuery(request), isPureQuery(requestOf("stuck"))]).toEqual([false, true]);
  });

  it("has wait reasons beside it that are not stored with the run", () => {
    expect(requestOf("created > -2h and waiting_on = limit")).toEqual({ query: "created > -2h", waiting_on: "limit" });
    expect(requestOf("waiting_on = timer")).toEqual({ query: "waiting_on = timer" });
  });

  it("knows the only workflow", () =>
    expect([
      workflowOf("workflow = a and stuck"),
      workflowOf("workflow in (a, b)"),
      workflowOf("workflow = a or stuck"),
    ]).toEqual(["a", "", ""]));
});

it("reads the place out of the server's words", () => {
  expect(mistakeOf("query, character 21: there is no field 'stauts'\n  a\n  ^")).toEqual({
    message: "there is no field 'stauts'",
    at: 20,
  });
  expect(mistakeOf("too long").at).toBeNull();
});
