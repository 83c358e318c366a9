import { describe, expect, it, vi } from "vitest";
import { duration, roughly } from "./durations";
import { shortId, shortVersion } from "./ids";
import { bytes, count, percent, plural, rate } from "./numbers";
import { clockMillis, time, utcOffset, wholeTime } from "./times";

describe("durations", () => {
  it.each([
    [0, "0 ms"],
    [0.62, "620 ms"],
    [0.9999, "1.0 s"],
    [8.4, "8.4 s"],
    [9.96, "10 s"],
    [38.2, "38 s"],
    [59.7, "1 m 00 s"],
    [247, "4 m 07 s"],
    [6124, "1 h 42 m"],
    [273_600, "3 d 4 h"],
    [-3, "0 ms"],
  ])("%d s is %s", (seconds, text) => expect(duration(seconds)).toBe(text));
  it("shows a dash for what is missing", () => expect(duration(null)).toBe("–"));
  it("rounds to one unit", () => expect([roughly(12), roughly(240), roughly(7200)]).toEqual(["12 s", "4 m", "2 h"]));
});

describe("numbers", () => {
  it("groups digits and has a true minus", () =>
    expect([count(1284), count(-2), count(-1_234_567), count(100_000), count(999), count(1234.5)]).toEqual([
      "1,284",
      "−2",
      "−1,234,567",
      "100,000",
      "999",
      "1,234.5",
    ]));
  it("never rounds to all or nothing", () =>
    expect([percent(1, 1000), percent(999, 1000), percent(5, 5)]).toEqual(["1 %", "99 %", "100 %"]));
  it("shows sizes", () => expect([bytes(214), bytes(19_293_798)]).toEqual(["214 B", "18.4 MiB"]));
  it("counts things", () => expect([plural(1, "run"), plural(2318, "run")]).toEqual(["1 run", "2,318 runs"]));
  it("shows rates", () => expect([rate(0), rate(0.61), rate(4.12), rate(212)]).toEqual(["0", "0.61", "4.1", "212"]));
});

describe("ids", () => {
  it("cuts the middle", () => expect(shortId("01a168ac-d680-7002-b31f-5d07e2c49c3f")).toBe("01a1…9c3f"));
  it("leaves keys", () => expect(shortId("order-17")).toBe("order-17"));
  it("cuts hashes only", () =>
    expect(["a41f9c2e5d07e2c49c3f", "flow-ddef1aea2131afd17cb0", "2026.1"].map(shortVersion)).toEqual([
      "a41f9c2",
      "ddef1ae",
      "2026.1",
    ]));
});

describe("times", () => {
  const now = new Date(2026, 9, 23, 14, 12);
  it("is the clock today", () => expect(time(new Date(2026, 9, 23, 14, 11, 58), now)).toBe("14:11:58"));
  it("is the day before", () => expect(time(new Date(2026, 9, 21, 16, 40), now)).toBe("Wed 21 Oct 16:40"));
  it("has the year of another one", () => expect(time(new Date(2025, 9, 21, 16, 40), now)).toBe("21 Oct 2025 16:40"));
  it("has milliseconds in logs", () => expect(clockMillis(new Date(2026, 9, 3, 4, 5, 6, 7))).toBe("04:05:06.007"));
  it.each([
    [0, "UTC"],
    [-60, "UTC+1"],
    [210, "UTC−3:30"],
    [-345, "UTC+5:45"],
  ])("%d minutes behind UTC is %s", (minutes, text) => {
    const offset = vi.spyOn(Date.prototype, "getTimezoneOffset").mockReturnValue(minutes);
    expect(utcOffset(now)).toBe(text);
    offset.mockRestore();
  });
  it("is whole in a tooltip", () => {
    const then = new Date(2026, 8, 3, 4, 5, 6);
    expect(wholeTime(then)).toMatch(/^Thu 3 Sep 2026 04:05:06 \S+ · /);
    expect(wholeTime(then)).toContain(then.toISOString());
  });
});
