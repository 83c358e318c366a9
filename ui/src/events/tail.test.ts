import { describe, expect, it } from "vitest";
import { isNewer, joined, type NamedEvent, newSince, reachText } from "./tail";

const event = (id: string, reached = 0, is_done = true) => ({ id, reached, is_done }) as NamedEvent;

describe("the tail of events", () => {
  it("compares ids as numbers of any size", () =>
    expect([isNewer("10", "9"), isNewer("9", "10"), isNewer("90071992547409931", "90071992547409930")]).toEqual([
      true,
      false,
      true,
    ]));
  it("finds what is new", () => {
    expect(newSince([event("12"), event("11"), event("9")], "10").map((e) => e.id)).toEqual(["12", "11"]);
    expect(newSince([event("1")], undefined)).toHaveLength(1);
  });
  it("joins without doubles, the fresher copy first", () => {
    const all = joined([event("11", 5), event("10", 3)], [event("10", 1), event("9")]);
    expect(all.map((e) => [e.id, e.reached])).toEqual([
      ["11", 5],
      ["10", 3],
      ["9", 0],
    ]);
  });
  it("tells whom it reached", () =>
    expect([reachText(event("1")), reachText(event("1", 1)), reachText(event("1", 2, false))]).toEqual([
      "no run waited",
      "1 run",
      "2 runs so far",
    ]));
});
