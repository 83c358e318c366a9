import { describe, expect, it } from "vitest";
import { binPath, boxes, coarser, forecast, laneWords, lastWork } from "./boxes";
import { makeScale } from "./scale";
import type { Segment, SegmentKind, TimelineNode } from "./types";

const at = (s: number) => new Date(s * 1000).toISOString();
const seg = (kind: SegmentKind, from: number, to: number, attempt: number | null = null): Segment => ({
  kind,
  from: at(from),
  to: at(to),
  attempt,
  worker: null,
});
const scale = makeScale({
  from: 0,
  to: 100_000,
  now: null,
  idle: [],
  until: 100_000,
  window: [0, 100_000],
  unfolded: false,
});
const node = (name: string, more: Partial<TimelineNode> = {}): TimelineNode => ({
  node: name,
  kind: "task",
  status: "pending",
  tasks: 0,
  counts: {},
  seq: null,
  attempts: 0,
  first_at: null,
  started_at: null,
  finished_at: null,
  error: null,
  segments: [],
  bins: null,
  durations: null,
  expected_s: null,
  child_run: null,
  after: [],
  ...more,
});

describe("boxes", () => {
  it("are where the segments are", () => {
    const found = boxes(
      [seg("queued", 0, 10), seg("failed", 10, 30, 1), seg("backoff", 30, 40), seg("success", 40, 90, 2)],
      scale,
      null,
    );
    expect(found.map((b) => [b.kind, Math.round(b.left * 100), Math.round(b.width * 100)])).toEqual([
      ["queued", 0, 10],
      ["failed", 10, 20],
      ["backoff", 30, 10],
      ["success", 40, 50],
    ]);
    expect(found[1]?.title).toContain("failed attempt, attempt 1");
  });
  it("grow to now while work goes on, and only the last of them", () => {
    const found = boxes([seg("queued", 0, 10), seg("running", 10, 20)], scale, 60_000);
    expect(found.map((b) => Math.round(b.width * 100))).toEqual([10, 50]);
    expect(boxes([seg("success", 10, 20)], scale, 60_000)[0]?.width).toBeCloseTo(0.1);
  });
  it("out of sight are left out, and cut at the edge", () => {
    const part = makeScale({
      from: 0,
      to: 100_000,
      now: null,
      idle: [],
      until: 100_000,
      window: [50_000, 100_000],
      unfolded: false,
    });
    expect(boxes([seg("success", 0, 40)], part, null)).toEqual([]);
    expect(boxes([seg("success", 0, 75)], part, null)[0]).toMatchObject({ left: 0, width: 0.5 });
  });
});

describe("words of a lane", () => {
  it("tell how long the last attempt took", () => {
    expect(lastWork([seg("failed", 0, 10, 1), seg("backoff", 10, 20), seg("success", 20, 124, 2)], null)).toBe(104);
    expect(laneWords({ status: "running", segments: [seg("running", 10, 20)] }, 70_000)).toBe("1 m 00 s");
  });
  it("tell why it has not begun", () => {
    expect(laneWords({ status: "pending", segments: [], after: ["process"] }, null)).toBe("after process");
    expect(laneWords({ status: "pending", segments: [seg("queued", 0, 10)] }, 3_120_000)).toBe("queued 52 m 00 s");
    expect(laneWords({ status: "dispatched", segments: [seg("queued", 0, 10)], worker: "etl-7c9f" }, 20_000)).toBe(
      "sent to etl-7c9f",
    );
  });
});

describe("the forecast", () => {
  it("puts nodes after those before them", () => {
    const found = forecast(
      [
        node("process", { status: "running", started_at: at(0), expected_s: 100 }),
        node("merge", { after: ["process"], expected_s: 20 }),
        node("notify", { after: ["merge"], expected_s: 5 }),
        node("unknown", { after: ["merge"] }),
      ],
      60_000,
    );
    expect(found.get("merge")).toEqual({ from: 100_000, to: 120_000 });
    expect(found.get("notify")).toEqual({ from: 120_000, to: 125_000 });
    expect(found.has("unknown")).toBe(false);
  });
  it("ends where a graph leads back", () => {
    const found = forecast([node("a", { after: ["b"], expected_s: 1 }), node("b", { after: ["a"], expected_s: 1 })], 0);
    expect(found.size).toBe(2);
  });
});

describe("bins", () => {
  it("are one path, failures too small to see included", () => {
    expect(binPath([1, 0, 2], 0, 10_000, scale, 2, 40, 100).match(/M/g)).toHaveLength(2);
    expect(binPath([], 0, 10_000, scale, 1, 40, 100)).toBe("");
  });
  it("are made coarser without losing a failure", () => {
    const found = coarser({ bin_s: 1, running: [4, 2, 6, 6, 1], failed: [0, 1, 0, 0, 2] }, 3);
    expect(found).toEqual({ bin_s: 2, running: [3, 6, 1], failed: [1, 0, 2] });
  });
});
