// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { type CopySubject, callOf, copyAs, python, shell } from "./copyAs";
import { eventWords, isCompact, TaskNames } from "./historyWords";
import { progressOf } from "./panel/progress";
import { isOwn, ownFirst, packagesOf, parseTraceback, shortFile } from "./traceback";
import type { HistoryEvent } from "./types";
import { parts, queuedWords, unnamed } from "./waits";

const TRACE = `Traceback (most recent call last):
  File "/app/.venv/lib/python3.13/site-packages/perdure/sdk/worker/execution.py", line 88, in run
    return await call(*args)
           ^^^^^^^^^^^^^^^^^
  File "/app/etl/process.py", line 41, in process
    rows = await normalise(batch)
  File "/app/etl/transform.py", line 88, in normalise
    r.raise_for_status()
    ~~~~~~~~~~~~~~~~~~^^
  File "/app/.venv/lib/python3.13/site-packages/httpx/_models.py", line 829, in raise_for_status
    raise HTTPStatusError(message)
httpx.HTTPStatusError: 503 Service Unavailable`;

describe("tracebacks", () => {
  it("have their own frames first, innermost first, with their code", () => {
    const [block] = parseTraceback(TRACE);
    const { own, library } = ownFirst(block!.frames);
    expect(own.map((f) => [shortFile(f.file), f.line, f.fn, f.code])).toEqual([
      ["etl/transform.py", 88, "normalise", ["r.raise_for_status()"]],
      ["etl/process.py", 41, "process", ["rows = await normalise(batch)"]],
    ]);
    expect(packagesOf(library)).toEqual(["httpx", "perdure"]);
    expect(block!.head).toBe("httpx.HTTPStatusError: 503 Service Unavailable");
  });
  it("that are chained are blocks, the last error first", () => {
    const blocks = parseTraceback(
      `${TRACE}\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File "/app/etl/process.py", line 50, in process\n    raise TransformError from e\nTransformError: no`,
    );
    expect(blocks.map((b) => b.head)).toEqual(["TransformError: no", "httpx.HTTPStatusError: 503 Service Unavailable"]);
    expect(blocks[0]?.link).toContain("direct cause");
  });
  it("of groups, other languages or nothing do no harm", () => {
    const [group] = parseTraceback(
      `  + Exception Group Traceback (most recent call last):\n  |   File "/app/a.py", line 3, in f\n  |     g()\n  | ExceptionGroup: two`,
    );
    expect(group?.frames[0]).toMatchObject({ file: "/app/a.py", line: 3, code: ["g()"] });
    expect(parseTraceback("")).toEqual([]);
    expect(parseTraceback("goroutine 1 [running]:\nmain.main()")[0]?.frames).toEqual([]);
  });
  it.each([
    ["/usr/lib/python3.12/asyncio/runners.py", false],
    ["C:\\\\venv\\\\Lib\\\\site-packages\\\\httpx\\\\x.py", false],
    ["<frozen importlib._bootstrap>", false],
    ["/srv/perdure/engine/tasks.py", false],
    ["/srv/shop/orders.py", true],
  ])("%s is own: %s", (file, own) => expect(isOwn(file)).toBe(own));
});

describe("copy as", () => {
  it("quotes for a shell", () => {
    expect(shell("etl-2026-10-23")).toBe("etl-2026-10-23");
    expect(shell("process[417]")).toBe("'process[417]'");
    expect(shell("it's; rm -rf $HOME `x`")).toBe(`'it'\\''s; rm -rf $HOME \`x\`'`);
    expect(shell("")).toBe("''");
    expect(shell("a\nb")).toBe("'a\nb'");
  });
  it("writes Python", () => {
    expect(python({ a: [true, null, 1.5], 'q"': "x\ny" })).toBe('{"a": [True, None, 1.5], "q\\"": "x\\ny"}');
    expect(python("\u2028\u0085")).toBe('"\\u2028\\u0085"');
  });
  it("reads calls as the SDK records them", () => {
    expect(callOf({ "*": [1, 2], depth: 3 })).toEqual({ args: [1, 2], kwargs: { depth: 3 } });
    expect(callOf({ "**": { part: 1 } })).toEqual({ args: [], kwargs: { part: 1 } });
    expect(callOf(7)).toEqual({ args: [7], kwargs: {} });
  });
  const subject = (more: Partial<CopySubject> = {}, status = "running"): CopySubject => ({
    origin: "https://perdure.acme.dev",
    namespace: "",
    run: { id: "01a1", key: "it's", workflow: "nightly-etl", status, input: { day: "2026" } },
    task: { label: "process[417]", name: "process-part", seq: 417, input: { part: 417 }, output: 66 },
    ...more,
  });
  it("is a command that can be pasted", () => {
    expect(copyAs("CLI", subject())).toBe(`perdure attempts 'key:it'\\''s' 417`);
    expect(copyAs("CLI", subject({}, "failed"))).toBe(`perdure retry 'key:it'\\''s'`);
    expect(copyAs("CLI", subject({ namespace: "acme", task: null }))).toBe(`perdure show 'key:it'\\''s' -n acme`);
  });
  it("is a request with the key in a variable", () => {
    const text = copyAs("curl", subject({ namespace: "a'b" }, "failed"));
    expect(text).toBe(
      `curl -X POST https://perdure.acme.dev/api/v1/runs/01a1/retry \\\n  -H "Authorization: Bearer $PERDURE_API_KEY" \\\n  -H 'Perdure-Namespace: a'\\''b'`,
    );
  });
  it("is a test", () => {
    expect(copyAs("pytest", subject())).toBe(
      "async def test_process_417() -> None:\n    assert await process_part(part=417) == 66",
    );
    expect(copyAs("pytest", subject({ task: null }))).toContain('await env.run(nightly_etl, day="2026")');
  });
});

const event = (seq: number, type: string, data: Record<string, unknown>): HistoryEvent => ({
  seq,
  at: "2026-10-23T12:00:00Z",
  type,
  data,
});

describe("events of a history", () => {
  const names = new TaskNames();
  names.learn(
    event(2, "TasksScheduled", {
      first: 0,
      name: "process-part",
      queue: "io",
      inputs: [1, 2, 3],
      nodes: ["process"],
      index: 5,
    }),
  );
  names.learn(event(3, "TasksScheduled", { first: 3, name: "merge", queue: "io", inputs: [1], nodes: [], index: -1 }));
  it("know tasks by their numbers", () => {
    expect(names.label(1)).toBe("process[6]");
    expect(names.label(3)).toBe("merge");
    expect(names.label(99)).toBe("task 99");
    expect(names.selection(2)).toEqual({ node: "process", seq: 2 });
    names.tell(99, "late[1]", "late");
    expect(names.label(99)).toBe("late[1]");
  });
  it("are told in words", () => {
    expect(
      eventWords(
        event(4, "TaskFailed", {
          seq: 1,
          attempts: 3,
          failure: { type: "TransformError", code: "x", message: "unmapped" },
        }),
        names,
      ),
    ).toEqual({
      status: "failed",
      about: "process[6]",
      says: "TransformError: unmapped, after 3 attempts",
      seqs: [1],
    });
    expect(eventWords(event(5, "TasksSucceeded", { seqs: [0, 1], results: [1, 2] }), names)).toMatchObject({
      about: "process",
      says: "2 tasks",
      seqs: [0, 1],
    });
    expect(eventWords(event(6, "StateSet", { name: "progress", value: 3 }), names).says).toBe("progress = 3");
    expect(eventWords(event(7, "SignalReceived", { name: "steer", value: "\u001b[31mred" }), names).says).toBe(
      "steer: ␛[31mred",
    );
  });
  it("of a kind that is not known are shown as they are", () => {
    expect(eventWords(event(8, "SomethingNew", { a: 1 }), names)).toEqual({
      status: null,
      about: "",
      says: '{"a":1}',
      seqs: [],
    });
    expect(isCompact(event(8, "SomethingNew", {}))).toBe(true);
  });
});

describe("what a run waits for", () => {
  const waiting = {
    on: "limit",
    reason: "the limit key/load of 24 at a time, held by me-1, other-2, ...",
    waits: [{ on: "limit", text: "", key: "key/load", runs: ["me-1", "other-2", "third-3"] }],
  };
  it("links to those that hold it", () => {
    const found = parts(waiting as never, "me-1");
    expect(found.map((p) => p.text).join("")).toBe(
      "the limit key/load of 24 at a time, held by this run, other-2 and others",
    );
    expect(found.filter((p) => p.href).map((p) => p.href)).toEqual(["/limits?q=key%2Fload", "/runs/other-2"]);
    expect(unnamed(waiting as never)).toEqual(["third-3"]);
    expect(queuedWords(waiting as never, 209)).toBe(" 209 tasks are queued.");
    expect(queuedWords({ ...waiting, on: "timer" } as never, 209)).toBe("");
  });
});

describe("progress", () => {
  it.each([
    [
      { done: 41_204, total: 66_000, unit: "rows" },
      { part: 41_204 / 66_000, text: "41,204 of 66,000 rows" },
    ],
    [{ progress: 0.4 }, { part: 0.4, text: "40 %" }],
    [0.25, { part: 0.25, text: "25 %" }],
    [
      { percent: 50, step: "<b>" },
      { part: 0.5, text: "50 %, <b>" },
    ],
    [{ note: "x" }, null],
    [null, null],
    [{ done: 1, total: 0 }, null],
  ])("of %j", (details, found) => expect(progressOf(details)).toEqual(found));
});
