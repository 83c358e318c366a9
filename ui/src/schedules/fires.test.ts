import { describe, expect, it } from "vitest";
import { type Fire, lateness, median, outcomeOf, outcomesText, summary } from "./fires";

function fire(change: Partial<Fire>): Fire {
  return {
    nominal_at: "2026-10-23T00:30:00Z",
    at: "2026-10-23T00:30:00.048Z",
    how: "fired",
    outcome: "started",
    run_id: "a",
    status: "success",
    ...change,
  };
}

describe("past fires", () => {
  it("shows what became of them", () =>
    expect([
      outcomeOf(fire({})),
      outcomeOf(fire({ outcome: "skipped", status: null })),
      outcomeOf(fire({ outcome: "missed", status: null })),
      outcomeOf(fire({ status: null })),
    ]).toEqual(["success", "skipped", "missed", "gone"]));
  it("is late only where the clock started it", () => {
    expect(lateness(fire({}))).toBeCloseTo(0.048);
    expect(lateness(fire({ how: "trigger" }))).toBeNull();
    expect(lateness(fire({ outcome: "missed" }))).toBeNull();
  });
  it("counts", () =>
    expect(outcomesText([fire({}), fire({}), fire({ status: "failed" })])).toBe("3 fires: 2 success, 1 failed"));
  it("sums up", () => {
    const text = summary([fire({}), fire({ run_id: "b", status: "failed" })], new Map([["a", 46]]));
    expect(text).toBe("1 success, 1 failed. p50 46 s. Started 48 ms late at the median, never missed.");
  });
  it("has a median", () => expect([median([]), median([3, 1, 2]), median([4, 1])]).toEqual([null, 2, 1]));
});
