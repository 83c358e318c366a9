// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { findEvent, inputIn, LOOK, outputIn } from "./eventSearch";
import { extended } from "./live";
import { add, EMPTY, filtered, follows, type Line } from "./logBuffer";
import { isSelected, nextFailed, type Row, stepFrom } from "./rows";
import { firstLook, labelOf, nodeOf, readSelection, writeSelection } from "./selection";
import { inPlace, readOpen, writeOpen } from "./stable";
import type { HistoryEvent, RunTask, TimelineNode } from "./types";

const at = (s: number) => new Date(1_700_000_000_000 + s * 1000).toISOString();
const line = (s: number, text: string, more: Partial<Line> = {}): Line => ({
  at: at(s),
  seq: 1,
  attempt: 1,
  level: "info",
  stream: "stdout",
  task: "t",
  text,
  ...more,
});

describe("log lines", () => {
  it("are each there once, in order, whether they came by page or by stream", () => {
    const page = add(EMPTY, [line(1, "a"), line(3, "c")]);
    const both = add(page, [line(2, "b"), line(3, "c"), line(4, "d")]);
    expect(both.lines.map((l) => l.text)).toEqual(["a", "b", "c", "d"]);
    expect(add(both, [line(4, "d")])).toBe(both);
  });
  it("that are alike stay as many as they are", () => {
    const twice = add(EMPTY, [line(1, "a"), line(1, "a")]);
    expect(twice.lines).toHaveLength(2);
    expect(add(twice, [line(1, "a"), line(1, "a")]).lines).toHaveLength(2);
    expect(add(twice, [line(1, "a"), line(1, "a"), line(1, "a")]).lines).toHaveLength(3);
  });
  it("are let go of at the beginning when there are too many", () => {
    const found = add(add(EMPTY, [line(1, "a"), line(2, "b")], 3), [line(3, "c"), line(4, "d")], 3);
    expect(found.lines.map((l) => l.text)).toEqual(["b", "c", "d"]);
    expect(found.dropped).toBe(1);
  });
  it("are filtered by level and task", () => {
    const lines = [
      line(1, "a", { level: "DEBUG" }),
      line(2, "b", { level: "WARNING", seq: 2 }),
      line(3, "c", { level: "CRITICAL" }),
    ];
    expect(filtered(lines, "warning", null, null).map((l) => l.text)).toEqual(["b", "c"]);
    expect(filtered(lines, "debug", 2, null).map((l) => l.text)).toEqual(["b"]);
    expect(filtered(lines, "debug", null, null)).toBe(lines);
  });
});

describe("following", () => {
  const view = (top: number) => ({ top, height: 1000, view: 200 });
  it("stops when a person scrolls up, and goes on at the end", () => {
    expect(follows(true, view(500), 800)).toBe(false);
    expect(follows(false, view(600), 500)).toBe(false);
    expect(follows(false, view(790), 600)).toBe(true);
  });
  it("does not stop because lines were added", () => expect(follows(true, view(700), 700)).toBe(true));
});

describe("finding an event", () => {
  const history: HistoryEvent[] = Array.from({ length: 5000 }, (_, n) =>
    n % 5 === 0
      ? { seq: n + 1, at: at(n), type: "TasksScheduled", data: { first: n, inputs: [n, n + 1, n + 2, n + 3, n + 4] } }
      : { seq: n + 1, at: at(n), type: "TasksSucceeded", data: { seqs: [n], results: [n * 2] } },
  );
  let reads = 0;
  const read = async (after: number, limit: number) => {
    reads += 1;
    return history.slice(after, after + limit);
  };
  it("takes a few looks", async () => {
    reads = 0;
    const found = await findEvent(read, 5000, at(3210), (e) => inputIn(e, 3213) !== null);
    expect(found?.seq).toBe(3211);
    expect(inputIn(found!, 3213)).toEqual({ value: 3213 });
    expect(reads).toBeLessThan(14);
  });
  it("finds ends too, and gives up on what is not there", async () => {
    const found = await findEvent(read, 5000, at(4321), (e) => outputIn(e, 4321) !== null);
    expect(outputIn(found!, 4321)).toEqual({ value: 8642 });
    reads = 0;
    expect(await findEvent(read, 5000, at(100), () => false)).toBeNull();
    expect(reads).toBeLessThan(20);
    expect(
      await findEvent(
        async () => [],
        0,
        at(0),
        () => true,
      ),
    ).toBeNull();
    expect(LOOK).toBeGreaterThan(1);
  });
});

describe("events that arrive", () => {
  const event = (seq: number): HistoryEvent => ({ seq, at: at(seq), type: "StateSet", data: {} });
  it("are appended once, and become the past when there are many", () => {
    const one = extended({ from: 10, fresh: [] }, [event(9), event(12), event(11)]);
    expect(one.fresh.map((e) => e.seq)).toEqual([11, 12]);
    expect(extended(one, [event(11)])).toBe(one);
    const many = extended(
      one,
      Array.from({ length: 600 }, (_, n) => event(13 + n)),
    );
    expect(many).toEqual({ from: 612, fresh: [] });
  });
});

describe("selection", () => {
  it("is in the address", () => {
    for (const text of ["process", "process#417", "a.b#0", "weird # name"])
      expect(writeSelection(readSelection(text)!)).toBe(text);
    expect(readSelection("process#417")).toEqual({ node: "process", seq: 417 });
    expect(readSelection("")).toBeNull();
  });
  it("names tasks", () => {
    expect(labelOf({ name: "part", node: "process[3]", seq: 8 })).toBe("process[3]");
    expect(labelOf({ name: "part", node: null, seq: 8 })).toBe("part #8");
    expect(labelOf({ name: "part", node: null, seq: 8 }, true)).toBe("part");
    expect(nodeOf({ name: "part", node: "outer[1].process[3]" })).toBe("outer.process");
  });
  it("begins with what failed", () => {
    const nodes = ["success", "running", "failed"].map((status) => ({ node: status, status, tasks: 1 }));
    expect(firstLook(nodes)?.node).toBe("failed");
    expect(firstLook(nodes.slice(0, 2))?.node).toBe("running");
    expect(firstLook(nodes.slice(0, 1))?.node).toBe("success");
  });
});

describe("rows", () => {
  const node = (name: string, status: string) => ({ node: name, status, seq: null }) as TimelineNode;
  const fan = node("fan", "failed");
  const rows: Row[] = [
    { type: "node", key: "a", node: node("a", "failed"), open: false },
    { type: "node", key: "fan", node: fan, open: true },
    { type: "task", key: "fan#4", node: fan, task: { seq: 4, status: "failed" } as RunTask },
    { type: "more", key: "fan:more", node: fan, tasks: {} as never },
    { type: "node", key: "b", node: node("b", "success"), open: false },
  ];
  it("are walked without those that are no task", () => {
    expect(stepFrom(rows, { node: "fan", seq: 4 }, 1)).toBe(4);
    expect(stepFrom(rows, { node: "b", seq: null }, -1)).toBe(2);
    expect(stepFrom(rows, { node: "b", seq: null }, 1)).toBe(4);
    expect(stepFrom(rows, null, 1)).toBe(0);
  });
  it("lead to the failures of a fan-out that is still running", () => {
    const atWork = { ...fan, tasks: 9, counts: { failed: 1, running: 3 }, status: "running" as const };
    expect(nextFailed([{ type: "node", key: "fan", node: atWork, open: false }], null)).toBe(0);
    expect(firstLook([node("a", "running"), atWork] as TimelineNode[])?.node).toBe("fan");
  });
  it("lead from failure to failure", () => {
    expect(nextFailed(rows, { node: "a", seq: null })).toBe(2);
    expect(nextFailed(rows, { node: "fan", seq: 4 })).toBe(0);
    expect(nextFailed([rows[4]!], null)).toBe(-1);
  });
  it("know which is selected", () =>
    expect(rows.map((r) => isSelected(r, { node: "fan", seq: 4 }))).toEqual([false, false, true, false, false]));
});

describe("lists that change", () => {
  it("keep their places", () => {
    const before = [
      { id: 1, v: "a" },
      { id: 2, v: "b" },
      { id: 3, v: "c" },
    ];
    const fresh = [
      { id: 9, v: "new" },
      { id: 3, v: "C" },
      { id: 1, v: "A" },
    ];
    expect(inPlace(before, fresh, (i) => i.id).map((i) => i.v)).toEqual(["A", "C", "new"]);
  });
  it("remember in the address which fan-outs are open", () => {
    for (const text of ["-", "process", "process:failed", "process::56,load:running:106", "a%2Cb%3Ac"])
      expect(writeOpen(readOpen(text)!)).toBe(text);
    expect(readOpen(null)).toBeNull();
    expect(readOpen("a%2Cb%3Ac")?.[0]?.node).toBe("a,b:c");
    expect(readOpen("x::999999999")?.[0]?.shown).toBe(5000);
  });
});
