import { describe, expect, it } from "vitest";
import { cronWords, firesOn, readCron } from "./cron";
import { clockNotes, everyWords, nextFires, whenWords } from "./when";
import { clockChanges, clockText, dayOf, daysAround, dayText, gapText, momentOf, offsetText } from "./zones";

const PARIS = "Europe/Paris";
const HOUR = 3_600_000;
const at = (text: string) => Date.parse(text);

describe("days at their real length", () => {
  it("has 25 hours when clocks go back, with the second 02:00 to 03:00 marked", () => {
    const day = dayOf(PARIS, at("2026-10-25T12:00:00Z"));
    expect(day.hours).toBe(25);
    expect([day.start, day.end]).toEqual([at("2026-10-24T22:00:00Z"), at("2026-10-25T23:00:00Z")]);
    expect(day.again).toEqual({ from: at("2026-10-25T01:00:00Z"), to: at("2026-10-25T02:00:00Z") });
    expect((day.again as { from: number }).from - day.start).toBe(3 * HOUR);
    expect(day.leap).toBeNull();
  });
  it("has 23 hours when clocks go forward", () => {
    const day = dayOf(PARIS, at("2027-03-28T12:00:00Z"));
    expect([day.hours, day.leap?.at, day.leap?.hours]).toEqual([23, at("2027-03-28T01:00:00Z"), 1]);
    expect(day.again).toBeNull();
  });
  it("has 24.5 hours on Lord Howe, which changes by half an hour", () =>
    expect(dayOf("Australia/Lord_Howe", at("2027-04-04T00:00:00Z")).hours).toBe(24.5));
  it("begins at 01:00 where midnight is skipped", () => {
    const day = dayOf("America/Santiago", at("2026-09-06T12:00:00Z"));
    expect([day.hours, clockText("America/Santiago", day.start)]).toEqual([23, "01:00"]);
  });
  it("has days in a row without holes, also west of Greenwich", () => {
    for (const zone of [PARIS, "America/New_York", "UTC", "Asia/Kolkata", "Pacific/Auckland"]) {
      const days = daysAround(zone, at("2026-10-30T03:00:00Z"), 3, 10);
      expect(days).toHaveLength(10);
      for (let n = 1; n < days.length; n += 1) expect(days[n]?.start).toBe(days[n - 1]?.end);
      expect((days[3]?.start as number) <= at("2026-10-30T03:00:00Z")).toBe(true);
      expect((days[3]?.end as number) > at("2026-10-30T03:00:00Z")).toBe(true);
    }
  });
  it("finds both changes of a year", () =>
    expect(clockChanges(PARIS, at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z")).map((c) => c.at)).toEqual([
      at("2026-03-29T01:00:00Z"),
      at("2026-10-25T01:00:00Z"),
    ]));
  it("takes the first of two, and the end of a gap", () => {
    expect(momentOf(PARIS, Date.UTC(2026, 9, 25, 2, 30))).toBe(at("2026-10-25T00:30:00Z"));
    expect(momentOf(PARIS, Date.UTC(2027, 2, 28, 2, 30))).toBe(at("2027-03-28T01:00:00Z"));
  });
  it("writes offsets and days", () => {
    expect(offsetText(PARIS, at("2026-10-24T00:30:00Z"))).toBe("+02:00");
    expect(offsetText("America/St_Johns", at("2026-12-01T00:00:00Z"))).toBe("−03:30");
    expect(dayText(PARIS, at("2027-03-28T01:00:00Z"), at("2026-10-23T00:00:00Z"))).toBe("Sun 28 Mar 2027");
  });
});

describe("gaps between fires", () => {
  it("is 25 h over the day on which clocks go back", () => {
    const times = ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"].map(at);
    const fires = nextFires(PARIS, times, at("2026-10-23T00:30:00Z"), at("2026-10-23T12:00:00Z"), offsetText);
    expect(fires.map((f) => [f.local, f.utc, gapText(f.gap as number), f.note, f.odd])).toEqual([
      ["Sat 24 Oct 02:30", "00:30", "24 h", "", false],
      ["Sun 25 Oct 02:30", "00:30", "24 h", "first of two", true],
      ["Mon 26 Oct 02:30", "01:30", "25 h", "", true],
    ]);
  });
  it("is unknown for the first fire ever", () =>
    expect(nextFires("UTC", [at("2026-10-24T00:30:00Z")], null, 0, offsetText)[0]?.gap).toBeNull());
  it.each([
    [30_000, "30 s"],
    [900_000, "15 m"],
    [23 * HOUR, "23 h"],
    [36.5 * HOUR, "36 h 30 m"],
    [7 * 24 * HOUR, "7 d"],
    [7 * 24 * HOUR + HOUR, "169 h"],
  ])("%d ms is %s", (ms, text) => expect(gapText(ms)).toBe(text));
});

describe("cron in words", () => {
  it.each([
    ["0 8 * * *", "every day at 08:00"],
    ["@daily", "every day at 00:00"],
    ["*/15 * * * *", "every 15 minutes"],
    ["5 * * * *", "every hour, at :05"],
    ["0 */6 * * *", "every 6 hours"],
    ["0 4 * * MON", "Mondays at 04:00"],
    ["0 3 * * 7", "Sundays at 03:00"],
    ["30 9 * * 1-5", "weekdays at 09:30"],
    ["0 9 1 * *", "the 1st at 09:00"],
    ["0 9 2,22 1 *", "the 2nd and 22nd of January at 09:00"],
    ["0 8,20 * * *", "every day at 08:00 and 20:00"],
    ["0 9 * * fri,mon", "Mondays and Fridays at 09:00"],
    ["0 9 L * *", null],
    ["0 9 * * FRI#2", null],
    ["0 0 9 * * *", "every day at 09:00"],
    ["15 0 9 * * *", null],
    ["61 9 * * *", null],
    ["nonsense", null],
  ])("%s is %s", (text, words) => expect(cronWords(text)).toBe(words));
  it("joins day of month and day of week by or, as cron does", () => {
    const cron = readCron("0 9 13 * FRI") as NonNullable<ReturnType<typeof readCron>>;
    expect([firesOn(cron, 2026, 10, 13), firesOn(cron, 2026, 10, 16), firesOn(cron, 2026, 10, 14)]).toEqual([
      true,
      true,
      false,
    ]);
  });
  it("keeps the expression beside the words", () => {
    expect(whenWords({ cron: "0 8 * * *" })).toEqual({ words: "every day at 08:00", written: "0 8 * * *" });
    expect(whenWords({ cron: "0 9 L * *" })).toEqual({ words: "0 9 L * *", written: "" });
    expect(whenWords({ every: "30s" })).toEqual({ words: "every 30 seconds", written: "@every 30s" });
    expect([everyWords("1h"), everyWords("1h30m"), everyWords(90)]).toEqual([
      "every hour",
      "every 1h30m",
      "every 1 m 30 s",
    ]);
  });
});

describe("what clock changes mean", () => {
  const now = at("2026-10-23T12:00:00Z");
  it("tells of the time that comes twice and of the one that does not come", () =>
    expect(clockNotes({ cron: "30 2 * * *", tz: PARIS }, now)).toEqual([
      "On Sun 25 Oct clocks go back and 02:30 happens twice. The schedule fires once, at the first, so the day after is 25 h later.",
      "On Sun 28 Mar 2027 there is no 02:30: it fires at 03:00.",
    ]));
  it("says nothing about a schedule whose times are elsewhere", () => {
    expect(clockNotes({ cron: "0 8 * * *", tz: PARIS }, now)).toEqual([]);
    expect(clockNotes({ cron: "30 2 * * MON", tz: PARIS }, now)).toEqual([]);
    expect(clockNotes({ every: "1h", tz: PARIS }, now)).toEqual([]);
    expect(clockNotes({ cron: "30 2 * * *" }, now)).toEqual([]);
  });
  it("says that a repeating expression fires in both hours", () =>
    expect(clockNotes({ cron: "*/15 * * * *", tz: PARIS }, now)).toEqual([
      "On Sun 25 Oct clocks go back and the hour from 02:00 comes twice: it fires in both.",
    ]));
});
