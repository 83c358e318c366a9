// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { DEFAULT_COLUMNS, offeredColumns, readColumns, toggleColumn, writeColumns } from "./columns";
import { versionsBehind } from "./useRowFacts";

const ids = (chosen: string | null) => readColumns(chosen).map((column) => column.id);

describe("columns in the URL", () => {
  it("are those of the start without any, or when none is known", () => {
    expect(ids(null)).toEqual(DEFAULT_COLUMNS);
    expect(ids("nonsense,,x")).toEqual(DEFAULT_COLUMNS);
    expect(writeColumns(DEFAULT_COLUMNS)).toBeNull();
  });

  it("go and come back in the order in which they are offered", () => {
    const order = offeredColumns(["env"]).map((column) => column.id);
    const fewer = toggleColumn(DEFAULT_COLUMNS, "why", order);
    expect(fewer).not.toContain("why");
    expect(toggleColumn(fewer, "why", order)).toEqual(DEFAULT_COLUMNS);
    const more = toggleColumn(DEFAULT_COLUMNS, "attr.env", order);
    expect(ids(writeColumns(more))).toEqual([...DEFAULT_COLUMNS, "attr.env"]);
  });

  it("are each shown once", () => expect(ids("run,run,key")).toEqual(["run", "key"]));
});

it("counts versions behind the current one", () => {
  const version = (name: string, day: number, current = false) => ({
    version: name,
    kind: "code",
    registered_at: `2026-10-0${day}T00:00:00Z`,
    current,
  });
  const versions = [version("a", 1), version("c", 3, true), version("b", 2), version("d", 4)];
  expect(["a", "b", "c", "d", "x"].map((one) => versionsBehind(versions, one))).toEqual([2, 1, null, null, null]);
});
