import { describe, expect, it } from "vitest";
import {
  addSample,
  ageClass,
  alarms,
  inRate,
  queuesOf,
  type Sample,
  type TaskDepth,
  trend,
  type Worker,
  workersInOrder,
} from "./queues";
import { culprit, readStack, shortFile } from "./stack";

const STACK = `  File "/srv/etl/etl/process.py", line 38, in process
    rows = dedupe(rows)
           ^^^^^^^^^^^^
  File "/srv/etl/etl/dedupe.py", line 57, in dedupe
    pairs = [fuzz.ratio(a, b) for a in rows for b in rows]
  File "/srv/etl/.venv/lib/python3.12/site-packages/rapidfuzz/fuzz.py", line 9, in ratio
    return score(a, b)
  File "/usr/lib/python3.12/json/decoder.py", line 337, in decode
  File "<frozen importlib._bootstrap>", line 1360, in _find_and_load
  File "/work/src/perdure/sdk/worker/execution.py", line 3, in go
`;

describe("the blocking stack", () => {
  const stack = readStack(STACK);
  it("has a person's own frames, innermost first", () =>
    expect(stack.own.map((f) => [shortFile(f.file), f.line, f.inside, f.source])).toEqual([
      ["etl/dedupe.py", 57, "dedupe", "pairs = [fuzz.ratio(a, b) for a in rows for b in rows]"],
      ["etl/process.py", 38, "process", "rows = dedupe(rows)"],
    ]));
  it("folds what is in libraries", () => {
    expect(stack.library).toHaveLength(4);
    expect(stack.packages).toEqual(["perdure", "importlib", "json", "rapidfuzz"]);
  });
  it("names the frame to blame", () => {
    expect(culprit(stack)?.inside).toBe("dedupe");
    expect(culprit(readStack(""))).toBeNull();
  });
  it("says when it was cut", () => expect(readStack(`…\n${STACK}`).cut).toBe(true));
});

function worker(name: string, change: Partial<Worker>): Worker {
  return { name, id: name, queues: ["io"], slots: 24, slots_used: 0, blocked: null, per_s: 0, ...change } as Worker;
}
const depth = (queue: string, pending: number, age: number | null): TaskDepth => ({
  queue,
  task: `${queue}-task`,
  pending,
  running: 2,
  oldest_age_s: age,
  workers: 1,
});

describe("queues", () => {
  const workers = [worker("a", { slots_used: 24, per_s: 2 }), worker("b", { queues: ["default"], slots_used: 3 })];
  const depths = [depth("io", 200, 700), depth("io", 9, 30), depth("gpu", 3, 5), depth("default", 0, null)];
  const queues = queuesOf(depths, workers, new Map([["mail", "moving"]]));
  it("puts the tasks of a queue together, the most urgent queue first", () => {
    expect(queues.map((q) => q.name)).toEqual(["gpu", "io", "default", "mail"]);
    const io = queues[1];
    expect([io?.depth, io?.running, io?.oldest, io?.slots, io?.used, io?.out]).toEqual([209, 4, 700, 24, 24, 2]);
  });
  it("raises alarms", () =>
    expect(alarms(queues).map((a) => a.text)).toEqual(["gpu has no worker", "io is at its slots", "mail is paused"]));
  it("tells how late the oldest is", () => expect(queues.map(ageClass)).toEqual(["very", "very", "muted", "muted"]));
  it("lists blocked workers first, then the busiest", () =>
    expect(workersInOrder([...workers, worker("c", { blocked: "x" })]).map((w) => w.name)).toEqual(["c", "a", "b"]));
});

describe("samples", () => {
  const io = (n: number) => queuesOf([depth("io", n, 1)], [worker("a", { per_s: 1 })], new Map());
  it("keeps an hour, one a second", () => {
    let samples: Sample[] = [];
    for (let n = 0; n < 10; n += 1) samples = addSample(samples, io(n), n * 900_000);
    expect(samples.map((s) => s.depths.io)).toEqual([6, 7, 8, 9]);
    expect(addSample(samples, io(3), 9 * 900_000 + 10)).toBe(samples);
  });
  it("draws at most sixty points and keeps the peaks", () => {
    const samples: Sample[] = Array.from({ length: 600 }, (_, at) => ({
      at,
      depths: { io: at === 301 ? 99 : 1 },
      held: {},
      out: {},
    }));
    expect(trend(samples, "io")).toHaveLength(60);
    expect(Math.max(...trend(samples, "io"))).toBe(99);
  });
  it("reckons what came in from what went out and how much it grew", () => {
    const samples = addSample(addSample([], io(10), 0), io(30), 10_000);
    expect(inRate(samples, "io", 1)).toBeCloseTo(3);
    expect(inRate(samples.slice(0, 1), "io", 1)).toBeNull();
  });
});
