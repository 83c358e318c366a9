import { expect, it } from "vitest";
import { NOTHING_SELECTED, PICKED_MAX, pick, pickRange, queryOf } from "./bulk";
import { requestOf } from "./chips";

const loaded = Array.from({ length: 150 }, (_, n) => `r${n}`);

it("picks rows and ranges", () => {
  const one = pick(NOTHING_SELECTED, "r3", true, loaded);
  expect(queryOf(one, requestOf("stuck"))).toBe("id in (r3)");
  const range = pickRange(one, "r3", "r1", loaded);
  expect([...range.ids].sort()).toEqual(["r1", "r2", "r3"]);
  expect([...pick(range, "r2", false, loaded).ids].sort()).toEqual(["r1", "r3"]);
  expect([...pickRange(NOTHING_SELECTED, "gone", "r1", loaded).ids]).toEqual(["r1"]);
});

it("does not pick more than one query can name", () => {
  expect(pickRange(NOTHING_SELECTED, "r0", "r149", loaded).ids.size).toBe(PICKED_MAX);
  const full = pickRange(NOTHING_SELECTED, "r0", "r149", loaded);
  expect(pick(full, "r149", true, loaded).ids.has("r149")).toBe(false);
});

it("says all that match by the query, if the query alone says it", () => {
  const all = { all: true, ids: new Set<string>() };
  expect(queryOf(all, requestOf(" stuck "))).toBe("stuck");
  expect(queryOf(all, requestOf("order-17 and stuck"))).toBeNull();
  expect(pick(all, "r0", false, loaded)).toEqual({ all: false, ids: new Set(loaded.slice(1, PICKED_MAX)) });
});
