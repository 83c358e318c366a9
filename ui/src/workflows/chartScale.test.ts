import { describe, expect, it } from "vitest";
import { areaPath, bars, changeSince, linePath, median, niceTop, stretches, ticks, topOf } from "./chartScale";

const box = { width: 100, height: 50 };

describe("scales", () => {
  it.each([
    [0, 1],
    [1, 1],
    [1.2, 1.5],
    [11, 15],
    [42, 50],
    [51, 75],
    [76, 100],
    [1284, 1500],
    [0.0047, 0.005],
    [0.3, 0.3],
  ])("%d ends at %d", (max, top) => expect(niceTop(max)).toBeCloseTo(top, 9));
  it("is of all series, with room above", () => {
    expect(topOf([1, null], [7])).toBe(10);
    expect(topOf([1, 1])).toBe(1.5);
  });
  it("marks evenly, with both ends", () => {
    expect(ticks(30)).toEqual([0, 7, 15, 22, 29]);
    expect(ticks(2)).toEqual([0, 1]);
    expect(ticks(1)).toEqual([0]);
    expect(ticks(0)).toEqual([]);
  });
});

describe("bars", () => {
  it("stand on the ground", () =>
    expect(bars([10, 5], 10, box, 0.2)).toEqual([
      { x: 5, y: 0, width: 40, height: 50 },
      { x: 55, y: 25, width: 40, height: 25 },
    ]));
  it("show what is small and hide what is zero", () => {
    const [small, none] = bars([1, 0], 100_000, box);
    expect(small?.height).toBe(1.5);
    expect(none?.height).toBe(0);
  });
});

describe("lines", () => {
  it("go through the middle of the columns", () => expect(linePath([0, 10], 10, box)).toBe("M25 50L75 0"));
  it("leave gaps", () => {
    expect(stretches([1, null, 2, 3])).toEqual([
      [[0, 1]],
      [
        [2, 2],
        [3, 3],
      ],
    ]);
    expect(linePath([null, null], 10, box)).toBe("");
  });
  it("draw a lone point", () => expect(linePath([null, 5], 10, box)).toBe("M58.3 25H91.7"));
  it("fill to the ground or to another line", () => {
    expect(areaPath([10, 10], null, 10, box)).toBe("M25 0L75 0L75 50L25 50Z");
    expect(areaPath([10, 10], [5, 5], 10, box)).toBe("M25 0L75 0L75 25L25 25Z");
    expect(areaPath([10, 10], [5, null], 10, box)).toBe("");
  });
});

describe("comparison of days", () => {
  it("takes the middle", () => expect([median([3, null, 1]), median([1, 2]), median([null])]).toEqual([2, 1.5, null]));
  it("says how much slower it became", () => expect(changeSince([10, 10, 10, 12, 12, 12], 3)).toBeCloseTo(0.2));
  it("says nothing about few days or small changes", () => {
    expect(changeSince([10, 10, 12, 12, 12], 2)).toBeNull();
    expect(changeSince([10, 10, 10, 10.2, 10.2, 10.2], 3)).toBeNull();
    expect(changeSince([0, 0, 0, 1, 1, 1], 3)).toBeNull();
  });
});
