import { describe, expect, it } from "vitest";
import { actorName, subjectOf } from "./actors";

const keys = new Map([["AbC123def456", "ci"]]);

describe("who did something", () => {
  it.each([
    ["key:AbC123def456", "ci"],
    ["key:ZZZ999yyy888xx", "key ZZZ9…88xx"],
    ["user:ada@example.com", "ada@example.com"],
    ["user:oidc:ada", "oidc:ada"],
    ["link:ada", "ada, by link"],
    ["schedule:nightly", "schedule:nightly"],
    ["dev", "dev"],
    ["", ""],
  ])("%s is %s", (subject, name) => expect(actorName(subject, keys)).toBe(name));
  it("asks for a key by its name", () =>
    expect([subjectOf("ci", keys), subjectOf("ada", keys)]).toEqual(["key:AbC123def456", "ada"]));
});
