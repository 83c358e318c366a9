import { afterEach, expect, test, vi } from "vitest";
import { askEarly, firstRequests, takeEarly } from "./early";

const origin = "http://perdure.test";
const at = (pathname: string, search = "") => ({ origin, pathname, search });
const get = (path: string, namespace?: string) =>
  new Request(origin + path, { headers: namespace ? { "Perdure-Namespace": namespace } : {} });

function answering() {
  const fetched = vi.fn(async (_url: string, _options?: RequestInit) => new Response("{}"));
  vi.stubGlobal("fetch", fetched);
  return fetched;
}

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

test("the page of a run asks for the session, the run and its timeline", () => {
  expect(firstRequests("/runs/a1")).toEqual([
    "/api/v1/runs/a1/timeline?bins=120",
    "/api/v1/session",
    "/api/v1/runs/a1",
  ]);
  expect(firstRequests("/runs")).toEqual(["/api/v1/session"]);
  expect(firstRequests("/workflows/a1")).toEqual(["/api/v1/session"]);
});

test("an answer is taken once", async () => {
  const fetched = answering();
  askEarly(at("/runs/a1"));
  expect(fetched).toHaveBeenCalledTimes(3);
  expect(takeEarly(get("/api/v1/session"), "")).not.toBeNull();
  expect(takeEarly(get("/api/v1/session"), "")).toBeNull();
  expect(takeEarly(get("/api/v1/runs/a1", "default"), "default")).not.toBeNull();
  expect(takeEarly(get("/api/v1/runs/another", "default"), "default")).toBeNull();
});

test("an answer of another namespace is not taken", () => {
  answering();
  askEarly(at("/runs/a1", "?ns=billing"));
  expect(takeEarly(get("/api/v1/runs/a1", "default"), "default")).toBeNull();
  askEarly(at("/runs/a1", "?ns=billing"));
  expect(takeEarly(get("/api/v1/runs/a1", "billing"), "default")).not.toBeNull();
});

test("what was refused before a sign-in is asked again", () => {
  answering();
  askEarly(at("/runs/a1"));
  expect(takeEarly(new Request(`${origin}/api/v1/session`, { method: "POST" }), "")).toBeNull();
  expect(takeEarly(get("/api/v1/runs/a1"), "")).toBeNull();
});

test("an old answer is not taken", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  answering();
  askEarly(at("/runs/a1"));
  vi.advanceTimersByTime(6_000);
  expect(takeEarly(get("/api/v1/runs/a1"), "")).toBeNull();
});
