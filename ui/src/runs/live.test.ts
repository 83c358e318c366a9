import { describe, expect, it } from "vitest";
import { type Listed, NOTHING_LIVE, receive, refresh, rowsOf, showGathered } from "./live";
import { matches, type RunSummary } from "./matching";
import { parseQuery } from "./query";

function run(id: string, given: Partial<RunSummary> = {}): RunSummary {
  return {
    id,
    workflow: "order",
    version: "1",
    key: null,
    status: "running",
    created_at: "2026-10-21T12:00:00Z",
    finished_at: null,
    attributes: {},
    error: null,
    stuck: null,
    paused_at: null,
    epoch: 1,
    parent_id: null,
    successor: null,
    url: "",
    ...given,
  } as RunSummary;
}

function listed(query: string, ...runs: RunSummary[]): Listed {
  const tree = parseQuery(query);
  return { runs, matches: (one) => matches(tree, one, Date.parse("2026-10-21T13:00:00Z")) };
}

const ended = { status: "success" as const, finished_at: "2026-10-21T12:30:00Z" };

describe("live rows", () => {
  const list = listed("status = running", run("b"), run("a"));

  it("change in place and keep their order", () => {
    const live = receive(NOTHING_LIVE, [run("a", { epoch: 2 })], list);
    expect(rowsOf([list.runs], live).map((row) => [row.run.id, row.run.epoch])).toEqual([
      ["b", 1],
      ["a", 2],
    ]);
  });

  it("stay greyed when they no longer match", () => {
    const live = receive(NOTHING_LIVE, [run("b", ended)], list);
    expect(rowsOf([list.runs], live).map((row) => [row.run.status, row.gone])).toEqual([
      ["success", true],
      ["running", false],
    ]);
    expect(receive(live, [run("b")], list).gone.has("b")).toBe(false);
  });

  it("gather new runs that match until they are asked for", () => {
    let live = receive(NOTHING_LIVE, [run("c"), run("d", ended), run("e"), run("0")], list);
    expect(live.gathered.map((one) => one.id)).toEqual(["e", "c"]);
    expect(rowsOf([list.runs], live).map((row) => row.run.id)).toEqual(["b", "a"]);
    live = showGathered(receive(live, [run("c", ended)], list));
    expect(live.gathered).toEqual([]);
    expect(rowsOf([list.runs], live).map((row) => [row.run.id, row.fresh])).toEqual([
      ["e", true],
      ["b", false],
      ["a", false],
    ]);
    live = receive(live, [run("e", ended)], list);
    expect(rowsOf([list.runs], live)[0]).toMatchObject({ gone: true, run: { status: "success" } });
  });

  it("keep what only the page knows, and drop it when the run ends", () => {
    const waiting = { reason: "a timer", on: "timer", waits: [] } as never;
    const page = [run("a", { waiting, attempts: 3 })];
    let live = receive(NOTHING_LIVE, [run("a", { epoch: 2 })], listed("", ...page));
    expect(rowsOf([page], live)[0]?.run).toMatchObject({ waiting: { on: "timer" }, attempts: 3, epoch: 2 });
    live = receive(live, [run("a", { ...ended, epoch: 2 })], listed("", ...page));
    expect(rowsOf([page], live)[0]?.run.waiting).toBeNull();
  });

  it("do not go back to what a late message says", () => {
    const page = [run("a", { ...ended, epoch: 2 })];
    const live = receive(NOTHING_LIVE, [run("a", { epoch: 2 })], listed("", ...page));
    expect(rowsOf([page], live)[0]?.run.status).toBe("success");
  });

  it("appear once when pages overlap", () =>
    expect(rowsOf([[run("b"), run("a")], [run("a")]], NOTHING_LIVE).map((row) => row.run.id)).toEqual(["b", "a"]));

  it("are read again for retries and deletions", () => {
    const page = [run("b", { ...ended, status: "failed" }), run("a", { ...ended, status: "failed" })];
    const list = listed("status = failed", ...page);
    const live = refresh(NOTHING_LIVE, page, [run("b", { attempts: 2 })], list.matches);
    expect(rowsOf([page], live).map((row) => [row.run.id, row.run.status, row.gone])).toEqual([
      ["b", "running", true],
      ["a", "failed", true],
    ]);
    const after = receive(live, [run("b", { ...ended, epoch: 1 })], list);
    expect(rowsOf([page], after)[0]?.run).toMatchObject({ status: "success", attempts: 2 });
  });
});

describe("matching a run", () => {
  const one = run("01a168ac-d680-7002-b31f-5d07e2c49c3f", {
    key: "order-17",
    attributes: { total: 120, env: "prod", n: "5" } as never,
    error: { code: "task_failed", message: "Card declined", type: "StripeError", traceback: "" } as never,
  });
  const now = Date.parse("2026-10-21T13:00:00Z");
  it.each<[string, boolean | null]>([
    ["status = running and workflow = order", true],
    ["status in (failed, success)", false],
    ["attr.total > 100", true],
    ["attr.n = 5", false],
    ['attr.n = "5"', true],
    ["attr.gone > 5", false],
    ["not attr.gone > 5", true],
    ["attr.gone != 5", true],
    ["created > -2h", true],
    ["created > -30m", false],
    ["finished exists", false],
    ["id prefix 01a168ac-d6", true],
    ["error_code = task_failed", true],
    ["stuck or paused", false],
    ["waiting_on = timer", null],
    ["waiting_on = timer and status = failed", false],
    ["declined", true],
    ["order-1", true],
    ["key prefix order- and not env", true],
  ])("%s is %s", (query, expected) => expect(matches(parseQuery(query), one, now)).toBe(expected));
});
