/** Saved views: queries with a name, kept on the server, and how many runs match each. */
import { useQueries, useQuery } from "@tanstack/react-query";
import { api, body, type Schemas } from "./client";

const COUNT_EVERY_MS = 30_000;
/** Views whose matches are counted; each costs the server a bounded look. */
const COUNTED_MAX = 8;

export function useViews() {
  return useQuery({
    queryKey: ["views"],
    queryFn: () => body(api.GET("/api/v1/views", { params: { query: { limit: 100 } } })),
    select: (page) => page.items,
    staleTime: 60_000,
  });
}

export type RunCount = Schemas["RunsCounted"];

/** By name. Absent while it is not known. */
export function useViewCounts(names: string[]): Record<string, RunCount | undefined> {
  const counted = names.slice(0, COUNTED_MAX);
  const answers = useQueries({
    queries: counted.map((view) => ({
      queryKey: ["view-count", view],
      queryFn: () => body(api.GET("/api/v1/runs/count", { params: { query: { view } } })),
      staleTime: COUNT_EVERY_MS,
      refetchInterval: COUNT_EVERY_MS,
      retry: false,
    })),
  });
  return Object.fromEntries(counted.map((name, n) => [name, answers[n]?.data]));
}
