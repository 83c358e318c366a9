import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { api, body, type Schemas } from "../api/client";
import { useEvents, useTopic } from "../api/stream";
import type { Spec } from "./when";

export type Schedule = Schemas["ScheduleDetail"];

const PAGE = 50;
export const FIRES_SHOWN = 30;
export const TIMES_SHOWN = 200;
/** Fires of busy schedules are read again at most this often. */
const CATCH_UP_MS = 1500;

export function specOf(schedule: Schedule): Spec {
  return schedule.spec as Spec;
}

export function useSchedules() {
  return useInfiniteQuery({
    queryKey: ["schedules"],
    queryFn: ({ pageParam }) =>
      body(api.GET("/api/v1/schedules", { params: { query: { limit: PAGE, cursor: pageParam || undefined } } })),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    refetchInterval: 10_000,
  });
}

/** Newest first, as the server lists them. */
export function useFires(name: string) {
  return useQuery({
    queryKey: ["schedule-fires", name],
    queryFn: () =>
      body(api.GET("/api/v1/schedules/{name}/fires", { params: { path: { name }, query: { limit: FIRES_SHOWN } } })),
    select: (page) => page.items,
    staleTime: 30_000,
  });
}

export function useTimes(name: string, nextAt: string | null) {
  return useQuery({
    // The next time is in the key: once it has passed, the list is another one.
    queryKey: ["schedule-times", name, nextAt],
    queryFn: () =>
      body(api.GET("/api/v1/schedules/{name}/times", { params: { path: { name }, query: { n: TIMES_SHOWN } } })),
    select: (found) => found.times.map((t) => Date.parse(t)),
    placeholderData: (before, query) => (query?.queryKey[1] === name ? before : undefined),
  });
}

/** How long the latest runs of a schedule took, by run, in seconds. Runs carry the name of their schedule as an attribute. */
export function useDurations(name: string) {
  return useQuery({
    queryKey: ["schedule-fires", name, "runs"],
    queryFn: () =>
      body(api.GET("/api/v1/runs", { params: { query: { attr: [`schedule:${name}`], limit: FIRES_SHOWN * 2 } } })),
    select: (page) =>
      new Map(
        page.items
          .filter((run) => run.finished_at)
          .map((run) => [run.id, (Date.parse(run.finished_at as string) - Date.parse(run.created_at)) / 1000]),
      ),
    staleTime: 30_000,
  });
}

/** Reads the fires of a schedule again when one of its runs changed. */
export function useLiveFires(): void {
  const client = useQueryClient();
  const touched = useRef(new Set<string>());
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useTopic("runs");
  useEvents<Schemas["RunSummary"]>("run", (batch) => {
    for (const run of batch) {
      const name = run.attributes?.schedule;
      if (typeof name === "string") touched.current.add(name);
    }
    if (touched.current.size === 0 || timer.current) return;
    timer.current = setTimeout(() => {
      timer.current = undefined;
      for (const name of touched.current) void client.invalidateQueries({ queryKey: ["schedule-fires", name] });
      touched.current.clear();
      void client.invalidateQueries({ queryKey: ["schedules"] });
    }, CATCH_UP_MS);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
}
