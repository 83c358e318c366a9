import { describe, expect, it } from "vitest";
import { isFull, type LimitItem, pausedOf, rateWords, rowsOf, sharesOf } from "./rows";

const holders = [
  { run_id: "b", workflow: "backfill", held: 16 },
  { run_id: "a", workflow: "etl", held: 24 },
];
const item: LimitItem = { scope: "queue", name: "io", concurrency: 40, held: 40, waiting: 225, holders };

describe("limits", () => {
  it("has a row for slots and one for a rate", () => {
    const rows = rowsOf([{ ...item, rate: { count: 100, per_s: 60, burst: null } }]);
    expect(rows.map((r) => [r.kind, r.limit, r.held, r.waiting])).toEqual([
      ["slots", 40, 40, 225],
      ["per minute", 100, null, null],
    ]);
  });
  it("shows limits that code declares, and no rule twice", () => {
    const use = { kind: "concurrency" as const, limit: 8, held: 2, waiting: 0, holders: [] };
    const uses = [
      { ...use, key: "queue/io", scope: "queue", name: "io" },
      { ...use, key: "key/book", scope: "key", name: "key/book" },
    ];
    expect(rowsOf([item], uses).map((r) => [r.name, r.kind, r.limit, r.item === null])).toEqual([
      ["io", "slots", 40, false],
      ["book", "slots of a key", 8, true],
    ]);
  });
  it("splits the bar by holder, the largest first", () => {
    const [row] = rowsOf([item]);
    expect(sharesOf(row!).map((s) => [s.holder?.workflow, s.size, s.kind])).toEqual([
      ["etl", 24, "a"],
      ["backfill", 16, "b"],
    ]);
    expect(isFull(row!)).toBe(true);
  });
  it("shows holders that are not named, and what is free", () => {
    const [row] = rowsOf([{ ...item, concurrency: 100, held: 50 }]);
    expect(sharesOf(row!).map((s) => [s.kind, s.size])).toEqual([
      ["a", 24],
      ["b", 16],
      ["other", 10],
      ["free", 50],
    ]);
  });
  it("has no row for a pause alone", () => {
    const paused = { scope: "queue", name: "io", concurrency: null, rate: null, paused_at: "2026-10-23T14:00:00Z" };
    expect(rowsOf([paused])).toEqual([]);
    expect(pausedOf([paused, item])).toEqual([paused]);
  });
  it("writes rates", () =>
    expect([rateWords(1), rateWords(3600), rateWords(90)]).toEqual(["per second", "per hour", "per 90 s"]));
});
