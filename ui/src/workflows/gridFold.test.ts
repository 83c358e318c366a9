import { describe, expect, it } from "vitest";
import type { GridCell, GridRun } from "./data";
import { cellLabel, columnLabels, doneShare, durationHeights, foldedRows } from "./gridFold";

const cell = (given: Partial<GridCell> = {}): GridCell => ({
  status: "success",
  tasks: 1,
  done: 1,
  failed: 0,
  attempts: 1,
  ...given,
});
const run = (cells: Record<string, GridCell>, duration_s: number | null = 1): GridRun => ({
  id: "1",
  key: null,
  created_at: "2026-10-21T10:00:00Z",
  finished_at: null,
  status: "success",
  duration_s,
  cells,
});

describe("folding", () => {
  const nodes = ["a", "b", "c", "d", "e"];
  it("shows all while they are few", () => expect(foldedRows(nodes, [], 5)).toEqual({ rows: nodes, hidden: 0 }));
  it("keeps failed and retried rows, in order", () => {
    const runs = [run({ e: cell({ status: "failed" }), c: cell({ attempts: 2 }) })];
    expect(foldedRows(nodes, runs, 3)).toEqual({ rows: ["a", "c", "e"], hidden: 2 });
  });
  it("counts failures within a fan-out", () =>
    expect(foldedRows(nodes, [run({ d: cell({ failed: 2, tasks: 9 }) })], 1).rows).toEqual(["d"]));
});

describe("cells", () => {
  it("show how far a fan-out is", () => {
    expect(doneShare(cell({ status: "running", tasks: 200, done: 162 }))).toBe(81);
    expect(doneShare(cell({ status: "running" }))).toBeNull();
    expect(doneShare(cell({ tasks: 200, done: 200 }))).toBeNull();
  });
  it("have a label", () => {
    expect(cellLabel("load", "21 Oct", cell({ attempts: 3 }))).toBe("load, 21 Oct: success, 3 attempts");
    expect(cellLabel("load", "21 Oct", cell({ status: "failed", tasks: 9, done: 9, failed: 2 }))).toBe(
      "load, 21 Oct: failed, 9 of 9 tasks ended, 2 failed",
    );
    expect(cellLabel("load", "21 Oct", undefined)).toBe("load, 21 Oct: did not run");
  });
});

it("scales durations to the longest", () =>
  expect(
    durationHeights([run({}, 10), run({}, 5), run({}, 0.01), run({}, null)], Date.parse("2026-10-21T10:00:08Z")),
  ).toEqual([100, 50, 5, 80]));

describe("labels of columns", () => {
  const at = (day: number, hour: number) => ({ created_at: new Date(2026, 9, day, hour, 30).toISOString() });
  it("are days", () =>
    expect(columnLabels([at(19, 8), at(20, 8), at(21, 8), at(22, 8), at(23, 8)])).toEqual(["", "20", "", "", "23"]));
  it("are times within one day", () => expect(columnLabels([at(19, 8), at(19, 9)], 1)).toEqual(["08:30", "09:30"]));
});
