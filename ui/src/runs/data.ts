/** What the pages of runs read and ask. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { api, body, type Schemas } from "../api/client";
import type { operations } from "../api/schema";
import type { RunsRequest } from "./chips";
import type { RunSummary } from "./matching";

export const PAGE_RUNS = 100;
/** Of one job's runs on one page. */
export const PAGE_OUTCOMES = 100;

export type RunsCount = Schemas["RunsCounted"];
export type Histogram = Schemas["RunsOverTime"];
export type UsualDuration = Schemas["UsualDuration"];

export type BulkJob = Schemas["BulkJobDetail"];
export type BulkAction = BulkJob["action"];
export type BulkOutcome = Schemas["BulkRunOutcome"];

export type RecentInput = Schemas["InputUsed"];

export type WorkflowDetail = Schemas["Workflow"];

function filters(request: RunsRequest) {
  return {
    query: request.query || undefined,
    q: request.q || undefined,
    waiting_on: (request.waiting_on || undefined) as RunsQuery["waiting_on"],
  };
}

type RunsQuery = NonNullable<operations["list_runs"]["parameters"]["query"]>;

function runsPage(query: RunsQuery, signal?: AbortSignal): Promise<Schemas["Page_RunSummary_"]> {
  return body(api.GET("/api/v1/runs", { params: { query }, signal }));
}

export function runsQuery(request: RunsRequest) {
  return infiniteQueryOptions({
    queryKey: ["runs", request],
    queryFn: ({ pageParam, signal }) =>
      runsPage({ ...filters(request), waits: true, limit: PAGE_RUNS, cursor: pageParam || undefined }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    // Rows do not move under the pointer: what is on the page changes by the stream, or when it is asked for.
    staleTime: 15_000,
    refetchOnWindowFocus: false,
    refetchOnReconnect: false,
  });
}

/** Some runs as they are now, with what they wait for. At most 100. */
export async function readAgain(runs: readonly RunSummary[]): Promise<RunSummary[]> {
  const query = `id in (${runs.map((run) => run.id).join(", ")})`;
  return (await runsPage({ query, waits: true, limit: runs.length })).items;
}

export function countQuery(request: RunsRequest) {
  return queryOptions({
    queryKey: ["runs-count", request],
    queryFn: () => body(api.GET("/api/v1/runs/count", { params: { query: filters(request) } })),
    staleTime: 10_000,
    refetchInterval: 15_000,
    retry: 1,
  });
}

type BulkRequest = Pick<Schemas["BulkJobRequest"], "action" | "query"> & Partial<Schemas["BulkJobRequest"]>;

export function startBulkJob(request: BulkRequest, signal?: AbortSignal): Promise<BulkJob> {
  const rest = { dry_run: false, key: "", reason: "", signal: "", view: "" };
  return body(api.POST("/api/v1/bulk-jobs", { body: { ...rest, ...request }, signal }));
}

function readBulkJob(id: string, signal?: AbortSignal): Promise<BulkJob> {
  return body(api.GET("/api/v1/bulk-jobs/{id}", { params: { path: { id } }, signal }));
}

const EXACT_POLL_MS = 500;

/** How many runs a job over this query takes, counted to the end by a job that does nothing. */
export function exactCountQuery(action: BulkAction, query: string) {
  return queryOptions({
    queryKey: ["exact-count", query],
    queryFn: async ({ signal }) => {
      let job = await startBulkJob({ action, query, dry_run: true }, signal);
      while (job.status === "pending" || job.status === "running") {
        await new Promise((resolve) => setTimeout(resolve, EXACT_POLL_MS));
        job = await readBulkJob(job.id, signal);
      }
      if (job.status !== "success") throw new Error(job.error ?? `the count was ${job.status}`);
      return job.matched;
    },
    staleTime: 0,
    gcTime: 0,
    retry: 0,
    refetchOnWindowFocus: false,
  });
}

export function histogramQuery(since: string, workflow: string) {
  return queryOptions({
    queryKey: ["runs-histogram", since, workflow],
    queryFn: () =>
      body(
        api.GET("/api/v1/runs/histogram", { params: { query: { since, bins: 96, workflow: workflow || undefined } } }),
      ),
    refetchInterval: 15_000,
    placeholderData: (before: Histogram | undefined) => before,
    retry: 1,
  });
}

export function durationsQuery() {
  return queryOptions({
    queryKey: ["workflow-durations"],
    queryFn: () => body(api.GET("/api/v1/workflow-durations")),
    select: (found) => new Map(found.items.map((item) => [item.workflow, item])),
    staleTime: 60_000,
    retry: 1,
  });
}

export function workflowsQuery() {
  return queryOptions({
    queryKey: ["workflows", "names"],
    queryFn: () => body(api.GET("/api/v1/workflows", { params: { query: { limit: 500 } } })),
    select: (page) => page.items,
    staleTime: 30_000,
  });
}

export function workflowQuery(name: string) {
  return queryOptions({
    queryKey: ["workflow", name],
    queryFn: () => body(api.GET("/api/v1/workflows/{name}", { params: { path: { name } } })),
    staleTime: 30_000,
    enabled: name !== "",
  });
}

export function inputsQuery(name: string) {
  return queryOptions({
    queryKey: ["workflow-inputs", name],
    queryFn: () => body(api.GET("/api/v1/workflows/{name}/inputs", { params: { path: { name } } })),
    select: (found) => found.items,
    staleTime: 10_000,
    enabled: name !== "",
    retry: 0,
  });
}

export function bulkJobQuery(id: string) {
  return queryOptions({
    queryKey: ["bulk-job", id],
    queryFn: () => readBulkJob(id),
    enabled: id !== "",
  });
}

export function outcomesQuery(id: string, outcome: BulkOutcome["outcome"]) {
  return infiniteQueryOptions({
    queryKey: ["bulk-job-runs", id, outcome],
    queryFn: ({ pageParam }) =>
      body(
        api.GET("/api/v1/bulk-jobs/{id}/runs", {
          params: { path: { id }, query: { outcome, limit: PAGE_OUTCOMES, cursor: pageParam || undefined } },
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
  });
}
