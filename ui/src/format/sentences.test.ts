import { expect, it } from "vitest";
import { withTimes } from "./sentences";

it("cuts a sentence at its times", () => {
  const at = Date.UTC(2026, 10, 17, 19, 59, 59);
  expect(withTimes("attempt 2 of 5 of the task 'load' at 2026-11-17 19:59:59 UTC, and more")).toEqual([
    { text: "attempt 2 of 5 of the task 'load' at " },
    { text: "2026-11-17 19:59:59 UTC", at },
    { text: ", and more" },
  ]);
  expect(withTimes("2026-11-17 19:59 UTC")).toEqual([
    { text: "2026-11-17 19:59 UTC", at: Date.UTC(2026, 10, 17, 19, 59) },
  ]);
});

it("leaves what is no time", () => {
  expect(withTimes("a signal 'steer'")).toEqual([{ text: "a signal 'steer'" }]);
  expect(withTimes("until 2026-13-45 19:59:59 UTC")).toEqual([{ text: "until 2026-13-45 19:59:59 UTC" }]);
  expect(withTimes("")).toEqual([]);
});
