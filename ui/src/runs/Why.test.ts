// @vitest-environment jsdom
import { expect, it } from "vitest";
import { splitError } from "./Why";

it("finds the exception's class", () => {
  expect(splitError("", "run_failed", "StripeError: card_declined: no funds")).toEqual({
    lead: "StripeError",
    rest: "card_declined: no funds",
  });
  expect(splitError("", "run_failed", "rejected by ops")).toEqual({ lead: "", rest: "rejected by ops" });
  expect(splitError("ValueError", "task_failed", "no such book")).toEqual({ lead: "ValueError", rest: "no such book" });
  expect(splitError("", "run_timed_out", "after 3 h: it was slow")).toEqual({
    lead: "run_timed_out",
    rest: "after 3 h: it was slow",
  });
});
