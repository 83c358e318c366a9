import { describe, expect, it } from "vitest";
import { addedLines, DIFF_STEPS_MAX, diffCounts, hunks, lineDiff } from "./lineDiff";

const shown = (before: string, after: string) =>
  lineDiff(before, after).map((l) => `${{ same: " ", add: "+", del: "-" }[l.kind]}${l.text}`);

describe("the difference of two texts", () => {
  it("is nothing for equal ones", () => expect(shown("a\nb\n", "a\nb")).toEqual([" a", " b"]));
  it("has removals before additions", () =>
    expect(shown("p:\n  c: 24\nq:", "p:\n  c: 50\n  l: w\nq:")).toEqual([
      " p:",
      "-  c: 24",
      "+  c: 50",
      "+  l: w",
      " q:",
    ]));
  it("begins and ends with nothing", () => {
    expect(shown("", "a\nb")).toEqual(["+a", "+b"]);
    expect(shown("a\nb", "")).toEqual(["-a", "-b"]);
  });
  it("is the shortest", () => {
    const found = lineDiff("a\nb\nc\na\nb\nb\na", "c\nb\na\nb\na\nc");
    expect(diffCounts(found)).toEqual({ added: 2, removed: 3 });
  });
  it("numbers the lines of both", () =>
    expect(lineDiff("a\nb", "x\na")).toEqual([
      { kind: "add", text: "x", before: null, after: 1 },
      { kind: "same", text: "a", before: 1, after: 2 },
      { kind: "del", text: "b", before: 2, after: null },
    ]));
  it("makes either text from itself", () => {
    const words = ["a", "b", "c", "d"];
    let state = 7;
    const next = (n: number) => {
      state = (state * 1103515245 + 12345) % 2147483648;
      return state % n;
    };
    for (let round = 0; round < 300; round += 1) {
      const one = Array.from({ length: next(12) }, () => words[next(4)] as string);
      const two = Array.from({ length: next(12) }, () => words[next(4)] as string);
      const found = lineDiff(one.join("\n"), two.join("\n"));
      expect(found.filter((l) => l.kind !== "add").map((l) => l.text)).toEqual(one);
      expect(found.filter((l) => l.kind !== "del").map((l) => l.text)).toEqual(two);
    }
  });
  it("stays fast for texts without a common line", () => {
    const many = (word: string) => Array.from({ length: DIFF_STEPS_MAX }, (_, n) => `${word}${n}`).join("\n");
    const began = performance.now();
    expect(diffCounts(lineDiff(many("a"), many("b")))).toEqual({ added: DIFF_STEPS_MAX, removed: DIFF_STEPS_MAX });
    expect(performance.now() - began).toBeLessThan(3000);
  });
});

describe("hunks", () => {
  const text = (changed: number[]) =>
    Array.from({ length: 20 }, (_, n) => (changed.includes(n) ? `new ${n}` : `line ${n}`)).join("\n");
  it("leave out what did not change", () => {
    const found = hunks(lineDiff(text([]), text([3, 15])), 1);
    expect(found.map((h) => h.map((l) => l.text))).toEqual([
      ["line 2", "line 3", "new 3", "line 4"],
      ["line 14", "line 15", "new 15", "line 16"],
    ]);
  });
  it("join when they meet", () => expect(hunks(lineDiff(text([]), text([3, 6])), 2)).toHaveLength(1));
  it("are none for equal texts", () => expect(hunks(lineDiff("a", "a"))).toEqual([]));
});

it("knows the lines that are new", () => expect([...addedLines(lineDiff("a\nb", "a\nx\nb\ny"))]).toEqual([2, 4]));
