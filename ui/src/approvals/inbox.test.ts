import { describe, expect, it } from "vitest";
import { labelOf, layout, shownScalar } from "./details";
import {
  type Approval,
  answerAs,
  byDeadline,
  deciders,
  grouped,
  mayAnswer,
  merge,
  nextNodes,
  orList,
  questionKey,
} from "./inbox";

const NOW = Date.parse("2026-10-23T14:00:00Z");

function approval(name: string, deadline: string | null, more: Partial<Approval> = {}): Approval {
  return {
    name,
    run_id: "r",
    deadline_at: deadline,
    created_at: "2026-10-23T13:00:00Z",
    answerers: [],
    ...more,
  } as Approval;
}

describe("the inbox", () => {
  const soon = approval("soon", "2026-10-23T14:47:00Z");
  const later = approval("later", "2026-10-25T14:00:00Z");
  const never = approval("never", null);
  it("is ordered by deadline, those without one last", () =>
    expect([never, later, soon].sort(byDeadline).map((a) => a.name)).toEqual(["soon", "later", "never"]));
  it("has a group for what is due soon", () => {
    const groups = grouped(merge([], [never, later, soon]), NOW);
    expect(groups.soon.map((e) => e.approval.name)).toEqual(["soon"]);
    expect(groups.later.map((e) => e.approval.name)).toEqual(["later", "never"]);
  });
  it("keeps what was answered elsewhere in its place, and puts what is new behind", () => {
    const first = merge([], [soon, later]);
    const second = merge(first, [approval("urgent", "2026-10-23T14:01:00Z"), { ...later, title: "changed" }]);
    expect(second.map((e) => [e.approval.name, e.gone])).toEqual([
      ["soon", true],
      ["later", false],
      ["urgent", false],
    ]);
    expect(second[1]?.approval.title).toBe("changed");
    expect(merge(second, [soon]).find((e) => e.approval.name === "soon")?.gone).toBe(false);
  });
  it("shows a new question in the place of the one before, and as another one", () => {
    const [before, after] = [approval("pay", null, { question: "a" }), approval("pay", null, { question: "b" })];
    const shown = merge(merge([], [before, never]), [never, after]);
    expect(shown.map((e) => e.approval.question)).toEqual(["b", undefined]);
    expect(questionKey(before)).not.toBe(questionKey(after));
  });
  it("knows who may answer", () => {
    expect(mayAnswer(approval("a", null), ["lena"])).toBe(true);
    expect(mayAnswer(approval("a", null, { answerers: ["ops"] }), ["lena", null])).toBe(false);
    expect(mayAnswer(approval("a", null, { answerers: ["ops", "lena"] }), ["lena"])).toBe(true);
  });
  it("answers in a name that is still asked", () => {
    const asked = approval("a", null, { answerers: ["ada", "ops"] });
    expect([answerAs(asked, true, "ops"), answerAs(asked, false, "ops"), answerAs(asked, false, "gone")]).toEqual([
      null,
      "ops",
      "ada",
    ]);
  });
  it("knows who decided", () => {
    const votes = [
      { who: "ada", approved: true },
      { who: "ben", approved: false },
      { who: "eve", approved: true },
    ] as Approval["votes"];
    expect(deciders(approval("a", null, { status: "approved", votes }))).toEqual(["eve", "ada"]);
    expect(deciders(approval("a", null, { status: "rejected", votes }))).toEqual(["ben"]);
    expect(deciders(approval("a", null, { status: "expired", votes }))).toEqual([]);
  });
  it("lists names", () => expect([orList([]), orList(["a"]), orList(["a", "b", "c"])]).toEqual(["", "a", "a, b or c"]));
  it("finds where the flow goes", () => {
    const links = [
      { source: "go", target: "ship", label: "approved" },
      { source: "go", target: "stop", label: "rejected, timeout" },
      { source: "ship", target: "tell", label: "" },
    ];
    expect(nextNodes(links, "go", "approved")).toEqual(["ship"]);
    expect(nextNodes(links, "go", "timeout")).toEqual(["stop"]);
    expect(nextNodes(links, "ship", "approved")).toEqual(["tell"]);
  });
});

describe("what it is about", () => {
  it("parts facts, tables and the rest", () => {
    const found = layout({
      total: 184920.5,
      orders: [{ id: "A-17", score: 0.2, amount: "€41,200.00" }, { id: "B-2" }],
      raw: { deep: [1] },
      tags: ["a"],
    });
    expect(found.facts).toEqual([["total", 184920.5]]);
    expect(found.tables[0]?.columns).toEqual([
      { name: "id", isNumber: false, isCode: true },
      { name: "score", isNumber: true, isCode: false },
      { name: "amount", isNumber: true, isCode: false },
    ]);
    expect(found.rest.map(([name]) => name)).toEqual(["Raw", "Tags"]);
  });
  it("takes any JSON", () => {
    expect(layout(null)).toEqual({ facts: [], tables: [], rest: [] });
    expect(layout("text").rest).toEqual([["Details", "text"]]);
    expect(layout([{ a: 1 }]).tables).toHaveLength(1);
    expect(layout([1, 2]).rest).toHaveLength(1);
    expect(layout({ long: "x".repeat(500) }).facts).toEqual([]);
  });
  it("writes labels and values", () => {
    expect([labelOf("already_refunded"), labelOf("x")]).toEqual(["Already refunded", "X"]);
    expect([shownScalar(184920.5), shownScalar(-2), shownScalar(true), shownScalar(null)]).toEqual([
      "184,920.5",
      "−2",
      "yes",
      "–",
    ]);
  });
});
