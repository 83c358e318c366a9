import { describe, expect, it } from "vitest";
import { makeScale, panWindow, type ScaleInput, ticks, timeAt, x, zoomWindow } from "./scale";
import { readZoom, windowOf, writeZoom } from "./zoom";

const MIN = 60_000;
const input = (more: Partial<ScaleInput> = {}): ScaleInput => ({
  from: 0,
  to: 100 * MIN,
  now: null,
  idle: [],
  until: 100 * MIN,
  window: null,
  unfolded: false,
  ...more,
});

describe("the time axis", () => {
  it("is linear without idle times, and leaves room for words at the end", () => {
    const scale = makeScale(input());
    expect(x(scale, 0)).toBe(0);
    expect(x(scale, 50 * MIN)).toBeCloseTo(x(scale, 100 * MIN) / 2);
    expect(x(scale, 100 * MIN)).toBeCloseTo(0.91);
  });
  it("folds idle times to a fixed width, however long they are", () => {
    const short = makeScale(input({ idle: [[10 * MIN, 40 * MIN]] }));
    const long = makeScale(input({ to: 1000 * MIN, until: 1000 * MIN, idle: [[10 * MIN, 940 * MIN]] }));
    const width = (s: typeof short) => s.pieces.find((p) => p.kind === "fold")!;
    expect(width(short).right - width(short).left).toBeCloseTo(width(long).right - width(long).left);
    expect(x(short, 40 * MIN) - x(short, 10 * MIN)).toBeLessThan(0.12);
  });
  it("gives a short piece of work beside a long one room to be seen", () => {
    const scale = makeScale(input({ to: 1000 * MIN, until: 1000 * MIN, idle: [[MIN, 500 * MIN]] }));
    const first = scale.pieces[0]!;
    expect(first.kind).toBe("work");
    expect(first.right - first.left).toBeGreaterThan(0.06);
  });
  it("never goes back and covers everything", () => {
    const scale = makeScale(
      input({
        now: 100 * MIN,
        until: 130 * MIN,
        idle: [
          [5 * MIN, 30 * MIN],
          [60 * MIN, 90 * MIN],
        ],
      }),
    );
    let before = -1;
    for (let t = 0; t <= 130 * MIN; t += MIN) {
      const at = x(scale, t);
      expect(at).toBeGreaterThanOrEqual(before);
      before = at;
    }
    expect(before).toBeCloseTo(1);
    expect(scale.pieces.map((p) => p.kind)).toEqual(["work", "fold", "work", "fold", "work", "future"]);
  });
  it("finds the time of a position again", () => {
    const scale = makeScale(input({ idle: [[20 * MIN, 60 * MIN]] }));
    for (const t of [0, 7 * MIN, 20 * MIN, 33 * MIN, 60 * MIN, 99 * MIN])
      expect(timeAt(scale, x(scale, t))).toBeCloseTo(t, -1);
  });
  it("presses what is expected into the margin", () => {
    const scale = makeScale(input({ now: 100 * MIN, until: 1000 * MIN }));
    expect(x(scale, 100 * MIN)).toBeCloseTo(0.82);
    expect(x(scale, 1000 * MIN)).toBe(1);
  });
  it("does not fold when it is unfolded, nor what is seen in part", () => {
    const idle: [number, number][] = [[20 * MIN, 60 * MIN]];
    expect(makeScale(input({ idle, unfolded: true })).pieces.some((p) => p.kind === "fold")).toBe(false);
    expect(makeScale(input({ idle, window: [30 * MIN, 70 * MIN] })).pieces.some((p) => p.kind === "fold")).toBe(false);
    expect(makeScale(input({ idle, window: [10 * MIN, 70 * MIN] })).pieces.some((p) => p.kind === "fold")).toBe(true);
  });
  it("does not fold a run that only waited", () => {
    const scale = makeScale(input({ now: 100 * MIN, idle: [[0, 100 * MIN]] }));
    expect(scale.pieces.map((p) => p.kind)).toEqual(["work", "future"]);
  });
  it("survives a run that took no time", () => {
    const scale = makeScale(input({ to: 0, until: 0 }));
    expect(Number.isFinite(x(scale, 0))).toBe(true);
  });
});

describe("ticks", () => {
  it("are round, apart, and away from now and folds", () => {
    const scale = makeScale(input({ now: 100 * MIN, idle: [[20 * MIN, 60 * MIN]] }));
    const found = ticks(scale, 0.08, 0);
    expect(found.length).toBeGreaterThan(3);
    for (const tick of found) expect(tick.at % MIN).toBe(0);
    const positions = found.map((t) => t.x);
    const fold = scale.pieces.find((p) => p.kind === "fold")!;
    for (const at of positions) {
      expect(Math.abs(at - x(scale, 100 * MIN))).toBeGreaterThan(0.06);
      expect(Math.abs(at - (fold.left + fold.right) / 2)).toBeGreaterThan(0.06);
    }
  });
  it("are round in the viewer's zone", () => {
    const [first] = ticks(makeScale(input({ to: 30 * 60 * MIN, until: 30 * 60 * MIN })), 0.2, 5.5 * 60 * MIN);
    expect((first!.at + 5.5 * 60 * MIN) % first!.step).toBe(0);
  });
});

describe("zoom", () => {
  const scale = makeScale(input());
  it("keeps the time under the pointer", () => {
    const at = 0.4;
    const window = zoomWindow(scale, [0, 100 * MIN], at, 2)!;
    expect(window[1] - window[0]).toBeCloseTo(50 * MIN, -1);
    expect(timeAt(makeScale(input({ window })), (timeAt(scale, at) - window[0]) / (window[1] - window[0]))).toBeCloseTo(
      timeAt(scale, at),
      -1,
    );
  });
  it("is all of it when zoomed out, and stays within the run", () => {
    expect(zoomWindow(scale, [0, 100 * MIN], 0.5, 0.5)).toBeNull();
    expect(panWindow([10 * MIN, 20 * MIN], [0, 100 * MIN], -5)).toEqual([0, 10 * MIN]);
    expect(panWindow([80 * MIN, 90 * MIN], [0, 100 * MIN], 5)).toEqual([90 * MIN, 100 * MIN]);
  });
  it("is written in the address and read again", () => {
    for (const text of ["10m", "selection", "120-340.5"]) expect(writeZoom(readZoom(text))).toBe(text);
    expect(readZoom("340-120")).toEqual({ kind: "fit" });
    expect(readZoom("<script>")).toEqual({ kind: "fit" });
    expect(writeZoom({ kind: "fit" })).toBeNull();
  });
  it("shows the last ten minutes of longer runs", () => {
    expect(windowOf({ kind: "last" }, 0, 100 * MIN, null)).toEqual([90 * MIN, 100 * MIN]);
    expect(windowOf({ kind: "last" }, 0, 5 * MIN, null)).toBeNull();
    expect(windowOf({ kind: "selection" }, 0, 5 * MIN, null)).toBeNull();
    expect(windowOf({ kind: "window", from: 1, to: 3 }, 10_000, 5 * MIN, null)).toEqual([11_000, 13_000]);
  });
});
