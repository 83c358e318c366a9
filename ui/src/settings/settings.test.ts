import { expect, it } from "vitest";
import { calendarWords } from "./calendarWords";

it.each([
  [{ weekdays: ["sat", "sun"] }, "sat, sun"],
  [{ yearly: ["12-25", "01-01"] }, "25 Dec, 1 Jan each year"],
  [{ dates: ["2026-12-24", "a", "b", "c"], weekdays: ["sun"] }, "sun; 4 dates"],
  [{ ranges: [["2026-12-24", "2027-01-01"]] }, "2026-12-24 to 2027-01-01"],
  [{ not: { weekdays: ["sat", "sun"] } }, "all but sat, sun"],
  [{}, "no day"],
])("a calendar in words", (spec, words) => expect(calendarWords(spec)).toBe(words));
