import { describe, expect, it } from "vitest";
import { add, command, filterOf, isEmpty, NOTHING, runQuery, words } from "./filter";

describe("the filter of dead letters", () => {
  const address = new URLSearchParams("workflow=import&q=can't open&since=1d&other=x");
  const filter = filterOf((name) => address.get(name));
  it("is read from the address", () => expect(filter).toEqual({ workflow: "import", q: "can't open", since: "1d" }));
  it("is shown in words", () =>
    expect(words(filter)).toBe("of workflow import, with “can't open” in the error, of the last 1d"));
  it("is a command", () =>
    expect(command(filter)).toBe("perdure dead-letter retry --workflow import --text 'can'\\''t open' --since 1d"));
  it("is a query of runs where one can ask for it", () =>
    expect([runQuery({}), runQuery({ workflow: 'a "b"', since: "1d" }), runQuery(filter)]).toEqual([
      "status = failed",
      'status = failed and workflow = "a \\"b\\"" and finished >= -1d',
      null,
    ]));
  it("can be empty", () => expect([isEmpty({}), isEmpty(filter)]).toEqual([true, false]));
  it("adds up what became of runs", () => {
    const first = add(NOTHING, [{ run_id: "a", outcome: "retried", reason: null }], false);
    const second = add(first, [{ run_id: "b", outcome: "refused", reason: "its definition is gone" }], true);
    expect(second).toMatchObject({ retried: 1, isOver: true });
    expect(second.refused.map((r) => r.run_id)).toEqual(["b"]);
  });
});
