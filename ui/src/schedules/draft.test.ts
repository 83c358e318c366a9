import { describe, expect, it } from "vitest";
import type { Schedule } from "./data";
import { draftOf, inputOf, requestOf, specOfDraft } from "./draft";

const schedule = {
  name: "close",
  workflow: "ledger",
  version: null,
  input: { book: 7 },
  attributes: { team: "fin" },
  timeout_s: 90,
  spec: {
    cron: ["0 2 * * *", "0 4 * * *"],
    tz: "Europe/Paris",
    overlap: "queue",
    exclude: ["holidays"],
    jitter: "30s",
  },
} as unknown as Schedule;

describe("the form of a schedule", () => {
  it("gives back the schedule that it was opened with", () => {
    const request = requestOf(draftOf(schedule, "UTC"), schedule, { book: 7 });
    expect(request).toEqual({
      workflow: "ledger",
      spec: {
        cron: ["0 2 * * *", "0 4 * * *"],
        tz: "Europe/Paris",
        overlap: "queue",
        missed: "last",
        exclude: ["holidays"],
        jitter: "30s",
      },
      input: { book: 7 },
      timeout: 90,
      version: null,
      attributes: { team: "fin" },
      origin: "api",
    });
  });
  it("begins with every morning in the viewer's zone", () =>
    expect(specOfDraft(draftOf(undefined, "Asia/Tokyo"))).toEqual({
      cron: "0 8 * * *",
      tz: "Asia/Tokyo",
      overlap: "skip",
      missed: "last",
    }));
  it("takes JSON or nothing as input", () => {
    expect(inputOf("  ")).toEqual({ value: null });
    expect(inputOf('{"a": 1}')).toEqual({ value: { a: 1 } });
    expect(inputOf("{a}")).toHaveProperty("problem");
  });
});
