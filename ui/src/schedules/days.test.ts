import { describe, expect, it } from "vitest";
import { isDense, notAgain, placeIn, shownDays } from "./days";
import { dayOf } from "./zones";

const PARIS = "Europe/Paris";
const at = (text: string) => Date.parse(text);

describe("the days of a schedule", () => {
  const now = at("2026-10-23T12:00:00Z");
  it("is the week around now for a daily schedule", () =>
    expect(shownDays(PARIS, now, [], [at("2026-10-24T00:30:00Z")]).map((d) => d.key)).toEqual([
      "2026-10-21",
      "2026-10-22",
      "2026-10-23",
      "2026-10-24",
      "2026-10-25",
      "2026-10-26",
      "2026-10-27",
    ]));
  it("is the days it fires on for a monthly one", () =>
    expect(
      shownDays(
        PARIS,
        now,
        ["2026-08-01T07:00:00Z", "2026-09-01T07:00:00Z", "2026-10-01T07:00:00Z"].map(at),
        ["2026-11-01T08:00:00Z", "2026-12-01T08:00:00Z"].map(at),
      ).map((d) => d.key),
    ).toEqual(["2026-09-01", "2026-10-01", "2026-10-23", "2026-11-01", "2026-12-01"]));
  it("places 02:30 after two and a half hours of a 25 hour day", () => {
    const day = dayOf(PARIS, at("2026-10-25T12:00:00Z"));
    expect(placeIn(day, at("2026-10-25T00:30:00Z"))).toBeCloseTo(2.5 / 25);
  });
  it("marks the second 02:30 as not fired, unless it fires", () => {
    const day = dayOf(PARIS, at("2026-10-25T12:00:00Z"));
    expect(notAgain(day, [at("2026-10-25T00:30:00Z")])).toEqual([at("2026-10-25T01:30:00Z")]);
    expect(notAgain(day, [at("2026-10-25T00:30:00Z"), at("2026-10-25T01:30:00Z")])).toEqual([]);
    expect(notAgain(day, [at("2026-10-25T06:30:00Z")])).toEqual([]);
  });
  it("is dense from about every half hour on", () => {
    const every = (ms: number) => Array.from({ length: 100 }, (_, n) => n * ms);
    expect([isDense(every(900_000)), isDense(every(3_600_000))]).toEqual([true, false]);
  });
});
