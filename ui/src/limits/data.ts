import { useQuery } from "@tanstack/react-query";
import { api, body } from "../api/client";
import { type LimitItem, rowsOf } from "./rows";

const LIMITS_SHOWN = 200;
const REFRESH_MS = 4_000;

/** Rules that operators set, and pauses. */
export function useRules() {
  return useQuery({
    queryKey: ["limits"],
    queryFn: () => body(api.GET("/api/v1/limits", { params: { query: { limit: LIMITS_SHOWN } } })),
    select: (page) => page.items as LimitItem[],
    refetchInterval: REFRESH_MS,
  });
}

/** Everything that limits something now: rules, and what code declares. */
export function useLimits() {
  const rules = useRules();
  const uses = useQuery({
    queryKey: ["limits", "use"],
    queryFn: () => body(api.GET("/api/v1/limit-use", {})),
    refetchInterval: (query) => (query.state.error ? false : REFRESH_MS),
    retry: false,
  });
  const rows = rules.data ? rowsOf(rules.data, uses.data?.items) : undefined;
  return { rules, uses, rows };
}
