import { describe, expect, it } from "vitest";
import {
  type Bin,
  barsOf,
  edgeAt,
  moveEdge,
  rangeOf,
  reachFor,
  shareOf,
  ticksOf,
  withRange,
  writeMoment,
} from "./brush";

const HOUR = 3_600_000;
const BIN = 900_000;
const to = Date.UTC(2026, 9, 21, 14);
const window = { from: to - 24 * HOUR, to };

describe("the brush and the query", () => {
  it("are the same range, both ways", () => {
    const range = { from: to - 6 * HOUR, to: to - 2 * HOUR };
    const text = withRange("status = failed", range, window);
    expect(text).toBe(
      `status = failed and created >= ${writeMoment(range.from)} and created < ${writeMoment(range.to)}`,
    );
    expect(rangeOf(text, window, to)).toEqual(range);
    expect(withRange(text, null, window)).toBe("status = failed");
  });

  it("replace an older range and leave the rest", () =>
    expect(withRange("created > -6h and (stuck or paused) and created < now", { from: to - HOUR, to }, window)).toBe(
      `(stuck or paused) and created >= ${writeMoment(to - HOUR)}`,
    ));

  it("put a query of alternatives into parentheses", () =>
    expect(withRange("stuck or paused", { from: to - HOUR, to }, window)).toBe(
      `(stuck or paused) and created >= ${writeMoment(to - HOUR)}`,
    ));

  it("read relative times and open ends", () => {
    expect(rangeOf("created > -6h", window, to)).toEqual({ from: to - 6 * HOUR, to });
    expect(rangeOf("created < -6h", window, to)).toEqual({ from: window.from, to: to - 6 * HOUR });
    expect(rangeOf("status = failed or created > -6h", window, to)).toBeNull();
  });

  it("write moments that read back to themselves", () => {
    expect(Date.parse(writeMoment(to))).toBe(to);
    expect(Date.parse(writeMoment(to + 61_000))).toBe(to + 61_000);
  });
});

describe("edges", () => {
  it("snap to bins within the window", () => {
    expect(edgeAt(0.5, window, BIN)).toBe(to - 12 * HOUR);
    expect(edgeAt(0.5004, window, BIN)).toBe(to - 12 * HOUR);
    expect(edgeAt(2, window, BIN)).toBe(to);
    expect(shareOf(to - 12 * HOUR, window)).toBe(0.5);
  });

  it("move by keys and never cross", () => {
    const range = { from: to - 2 * BIN, to: to - BIN };
    expect(moveEdge(range, "from", -4, window, BIN)).toEqual({ from: to - 6 * BIN, to: to - BIN });
    expect(moveEdge(range, "from", 4, window, BIN)).toEqual(range);
    expect(moveEdge(range, "to", 4, window, BIN)).toEqual({ from: range.from, to });
    expect(moveEdge(range, "to", -4, window, BIN)).toEqual(range);
  });
});

describe("the histogram", () => {
  const bin = (given: Partial<Bin>): Bin => ({
    at: "",
    success: 0,
    failed: 0,
    cancelled: 0,
    running: 0,
    pending: 0,
    ...given,
  });

  it("scales to the highest bin, failures at the foot", () => {
    const bars = barsOf([bin({ success: 30, failed: 10 }), bin({ success: 20 })], 40);
    expect(bars).toEqual([
      { bin: 0, layer: "failed", y: 30, height: 10 },
      { bin: 0, layer: "success", y: 0, height: 30 },
      { bin: 1, layer: "success", y: 20, height: 20 },
    ]);
  });

  it("shows one failure among thousands, and nothing for nothing", () => {
    expect(barsOf([bin({ success: 5000, failed: 1 })], 46)[0]?.height).toBeGreaterThan(1);
    expect(barsOf([bin({})], 46)).toEqual([]);
  });

  it("has ticks at whole hours inside the window", () => {
    const ticks = ticksOf({ from: window.from + BIN, to: to + BIN });
    expect(ticks.length).toBeGreaterThanOrEqual(6);
    expect(ticks.length).toBeLessThanOrEqual(9);
    for (const tick of ticks) expect(new Date(tick).getMinutes()).toBe(0);
  });

  it("reaches as far as the query asks", () => {
    expect(
      ["", "created > -2h", "created > -24h", "created > -2d", "created > -60d"].map((q) => reachFor(q, to).since),
    ).toEqual(["24h", "24h", "24h", "3d", "30d"]);
  });
});
