import { expect, test } from "vitest";
import { loaderOf, PAGES } from "./pages";

const page = (path: string) => PAGES.find(([p]) => p === path)?.[1];

test("a page is found by its address", () => {
  expect(loaderOf("/")).toBe(page("/runs"));
  expect(loaderOf("/runs")).toBe(page("/runs"));
  expect(loaderOf("/runs/0190")).toBe(page("/runs/$id"));
  expect(loaderOf("/workflows/etl%2Fdaily")).toBe(page("/workflows/$name"));
});

test("an address without a page loads nothing", () => {
  expect(loaderOf("/nothing")).toBeUndefined();
  expect(loaderOf("/runs/a/b")).toBeUndefined();
});
