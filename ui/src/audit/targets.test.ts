import { describe, expect, it } from "vitest";
import { command, detailText, filterOf, pageOf } from "./targets";

const RUN = "01a1eb04-1f7e-7000-a2a2-92d5476fbc75";
describe("the audit log", () => {
  it.each([
    ["run.cancel", RUN, `/runs/${RUN}`],
    ["run.cancel", "many", null],
    ["schedule.pause", "a/b", "/schedules?name=a%2Fb"],
    ["workflow.deploy", "etl", "/workflows/etl"],
    ["approval.approve", RUN, `/runs/${RUN}`],
    ["event.emit", "order.paid", "/events?name=order.paid"],
    ["key.create", "x", "/settings"],
    ["session.create", "x", null],
  ])("%s of %s leads to %s", (action, target, page) => expect(pageOf({ action, target })).toBe(page));
  it("keeps its filter in the address", () => {
    const given = new URLSearchParams("actor=ada&since=24h&other=x");
    expect(filterOf((name) => given.get(name))).toEqual({ actor: "ada", since: "24h" });
  });
  it("writes the command", () =>
    expect([command({}), command({ actor: "user:ada", target: "it's" })]).toEqual([
      "perdure audit",
      "perdure audit --actor user:ada --target 'it'\\''s'",
    ]));
  it("writes details", () =>
    expect(detailText({ reason: "moving", runs: 3, none: null })).toBe("reason moving, runs 3"));
});
