import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { useEvents, useTopic } from "../api/stream";
import { type Approval, type Entry, merge } from "./inbox";

/** Open approvals that are shown; the server lists the oldest first. */
export const OPEN_SHOWN = 200;
const REFRESH_MS = 5_000;
/** The path needs no bins; the server gives at least a few. */
const PATH_BINS = 4;

export type Whose = "me" | "all";

export function useOpen(whose: Whose) {
  return useQuery({
    queryKey: ["approvals", whose],
    queryFn: () =>
      body(
        api.GET("/api/v1/approvals", {
          params: { query: { limit: OPEN_SHOWN, assignee: whose === "me" ? "@me" : undefined } },
        }),
      ),
    refetchInterval: REFRESH_MS,
  });
}

/** The open approvals, each in the place where it was first shown. */
export function useInbox(whose: Whose) {
  const client = useQueryClient();
  const query = useOpen(whose);
  // A change of a run that waits, or of the number of approvals, is a reason to look again at once.
  useTopic("counts");
  useEvents("counts", () => void client.invalidateQueries({ queryKey: ["approvals"] }));
  const [entries, setEntries] = useState<Entry[]>([]);
  const shownFor = useRef(whose);
  const open = query.data?.items;
  useEffect(() => {
    if (!open) return;
    setEntries((shown) => merge(shownFor.current === whose ? shown : [], open));
    shownFor.current = whose;
  }, [open, whose]);
  return { query, entries, hasMore: query.data?.next != null };
}

/** One approval as it stands; asked again when it left the list. */
export function useApproval(entry: Entry | undefined) {
  return useQuery({
    queryKey: ["approval", entry?.approval.run_id, entry?.approval.name],
    queryFn: () =>
      body(
        api.GET("/api/v1/approvals/{id}/{name}", {
          params: { path: { id: entry?.approval.run_id as string, name: entry?.approval.name as string } },
        }),
      ),
    enabled: entry?.gone === true,
    staleTime: 0,
    retry: false,
  });
}

export function useOneApproval(runId: string, name: string, enabled: boolean) {
  return useQuery({
    queryKey: ["approval", runId, name],
    queryFn: () => body(api.GET("/api/v1/approvals/{id}/{name}", { params: { path: { id: runId, name } } })),
    enabled,
  });
}

export type PathNode = Schemas["TimelineLane"];

/** The steps of the run, in their order. */
export function usePath(approval: Approval) {
  return useQuery({
    queryKey: ["approval-path", approval.run_id],
    queryFn: () =>
      body(
        api.GET("/api/v1/runs/{id}/timeline", {
          params: { path: { id: approval.run_id }, query: { bins: PATH_BINS } },
        }),
      ),
    select: (found) => found.nodes,
    staleTime: 10_000,
    retry: false,
  });
}

/** Where the flow can go; workflows of code have no graph. */
export function useLinks(approval: Approval): Schemas["GraphLink"][] {
  const found = useQuery({
    queryKey: ["approval-graph", approval.workflow],
    queryFn: () =>
      body(api.GET("/api/v1/workflows/{name}/graph", { params: { path: { name: approval.workflow } } })) as Promise<
        Schemas["FlowGraph"]
      >,
    staleTime: 60_000,
    retry: false,
  });
  return found.data?.links ?? [];
}
