import { describe, expect, it } from "vitest";
import { fixOf, meantBy, otherHint, spotOf } from "./problems";

const text = 'flow: x\ntasks:\n  route:\n    depends_on: [proces]\n    when: "raws > 3"\n  "a é𝒳": bad_kye\n';
const cut = (line: number, column: number) => {
  const spot = spotOf(text, { line, column });
  return spot && text.slice(spot.from, spot.to);
};

describe("the spot of a problem", () => {
  it("is a word", () => expect([cut(4, 18), cut(3, 3), cut(1, 1)]).toEqual(["proces", "route", "flow"]));
  it("counts characters, not units", () => expect(cut(6, 11)).toBe("bad_kye"));
  it("is nowhere without a line", () => expect([cut(0, 0), cut(99, 1)]).toEqual([null, null]));
  it("is empty at the end of a line", () => expect(cut(1, 8)).toBe(""));
});

describe("the fix of a problem", () => {
  const fixed = (line: number, column: number, message: string, hint: string) => {
    const fix = fixOf(text, { line, column, message, hint });
    return fix && text.slice(0, fix.from) + fix.insert + text.slice(fix.to);
  };
  it("puts what was meant in its place", () =>
    expect(fixed(4, 18, "task 'route' depends on 'proces', which is no task here", "did you mean 'process'?")).toBe(
      text.replace("[proces]", "[process]"),
    ));
  it("keeps the colon of a key", () =>
    expect(fixed(3, 3, "unknown key 'route' in tasks", "did you mean 'router'?")).toBe(
      text.replace("route:", "router:"),
    ));
  it("changes a name within an expression", () =>
    expect(fixed(5, 12, "unknown name 'raws'", "did you mean 'rows'?")).toBe(text.replace("raws", "rows")));
  it("is none without a suggestion", () => expect(fixed(4, 18, "no", "use letters")).toBeNull());
});

it("reads hints", () => {
  expect(meantBy("did you mean 'etl:load'?")).toBe("etl:load");
  expect(meantBy("Did you mean `and`?")).toBe("and");
  expect(meantBy("did you mean process?")).toBe("process");
  expect(meantBy("it takes a or b")).toBeNull();
  expect(otherHint("did you mean 'process'?")).toBe("");
  expect(otherHint("use letters")).toBe("use letters");
});
