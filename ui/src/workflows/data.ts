/** What the workflow pages read, and how it is kept fresh. */
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { ApiError, api, body, type Schemas } from "../api/client";
import { useEvents, useTopic } from "../api/stream";

export type Workflow = Schemas["Workflow"];
export type VersionList = Schemas["VersionList"];
export type UsedVersion = Schemas["UsedVersion"];
export type WorkflowStats = Schemas["Statistics"];
export type GridCell = Schemas["GridEntry"];
export type GridRun = Schemas["GridColumn"];
export type ErrorGroup = Schemas["WorkflowError"];
export type UsualDuration = Schemas["UsualDuration"];
export type JsonSchema = Record<string, unknown>;

export const STATS_DAYS = 30;
export const GRID_RUNS = 25;
export const ERROR_DAYS = 15;
const PAGE = 50;
const LIMITS_READ = 500;
const REFRESH_MS = 2000;

const path = (name: string) => ({ params: { path: { name } } });
const encoded = encodeURIComponent;

export function useWorkflows(q: string) {
  return useInfiniteQuery({
    queryKey: ["workflows", q],
    queryFn: ({ pageParam, signal }) =>
      body(api.GET("/api/v1/workflows", { params: { query: { q, limit: PAGE, cursor: pageParam } }, signal })),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
  });
}

export function useDurations() {
  return useQuery({
    queryKey: ["workflow-durations"],
    queryFn: ({ signal }) => body(api.GET("/api/v1/workflow-durations", { signal })),
    select: (found) => new Map(found.items.map((item) => [item.workflow, item])),
    staleTime: 60_000,
  });
}

export function useWorkflow(name: string) {
  return useQuery({
    queryKey: ["workflow", name],
    queryFn: ({ signal }) => body(api.GET("/api/v1/workflows/{name}", { ...path(name), signal })),
  });
}

export function useVersions(name: string) {
  return useQuery({
    queryKey: ["workflow", name, "versions"],
    queryFn: ({ signal }) => body(api.GET("/api/v1/workflows/{name}/versions", { ...path(name), signal })),
  });
}

export function useStats(name: string) {
  return useQuery({
    queryKey: ["workflow", name, "stats"],
    queryFn: ({ signal }) =>
      body(
        api.GET("/api/v1/workflows/{name}/stats", { params: { path: { name }, query: { days: STATS_DAYS } }, signal }),
      ),
    staleTime: 30_000,
  });
}

export function useGrid(name: string) {
  return useQuery({
    queryKey: ["workflow", name, "grid"],
    queryFn: ({ signal }) =>
      body(
        api.GET("/api/v1/workflows/{name}/grid", { params: { path: { name }, query: { runs: GRID_RUNS } }, signal }),
      ),
  });
}

export function useErrors(name: string) {
  return useQuery({
    queryKey: ["workflow", name, "errors"],
    queryFn: ({ signal }) =>
      body(
        api.GET("/api/v1/workflows/{name}/errors", { params: { path: { name }, query: { days: ERROR_DAYS } }, signal }),
      ),
    staleTime: 30_000,
  });
}

/** A version never changes. */
export function useDefinition(name: string, version: string | null | undefined) {
  return useQuery({
    queryKey: ["definition", name, version],
    queryFn: ({ signal }) =>
      body(
        api.GET("/api/v1/workflows/{name}/versions/{version}", {
          params: { path: { name, version: version as string } },
          signal,
        }),
      ),
    enabled: Boolean(version),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** The text of a version: as it was written, or its document where it came without text. */
export function textOf(definition: Schemas["WorkflowDefinition"]): string {
  return definition.source ?? (definition.document ? JSON.stringify(definition.document, null, 2) : "");
}

export interface Pause {
  at: string;
  by: string | null;
  reason: string | null;
}

/** Workflows that are paused, by name. */
export function usePauses() {
  return useQuery({
    queryKey: ["pauses"],
    queryFn: ({ signal }) => body(api.GET("/api/v1/limits", { params: { query: { limit: LIMITS_READ } }, signal })),
    select: (page) => {
      const out = new Map<string, Pause>();
      for (const rule of page.items)
        if (rule.scope === "workflow" && rule.name && rule.paused_at)
          out.set(rule.name, { at: rule.paused_at, by: rule.paused_by, reason: rule.pause_reason });
      return out;
    },
  });
}

/** Reads what changes with runs anew after events about them, at most every two seconds. */
export function useFreshRuns(name: string): void {
  const client = useQueryClient();
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useTopic("runs");
  useEvents<{ workflow?: string }>("run", (batch) => {
    if (timer.current || !batch.some((run) => run.workflow === name)) return;
    timer.current = setTimeout(() => {
      timer.current = undefined;
      for (const part of ["grid", "versions", "stats", "errors"])
        void client.invalidateQueries({ queryKey: ["workflow", name, part] });
    }, REFRESH_MS);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
}

export function isMissing(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** The runs page, filtered. */
export function runsHref(name: string, more: string[] = []): string {
  const query = [`workflow = ${quoted(name)}`, ...more].join(" and ");
  return `/runs?${new URLSearchParams({ q: query })}`;
}

export function quoted(text: string): string {
  return /^[\w.-]+$/.test(text) ? text : JSON.stringify(text);
}

export function workflowHref(name: string, query: Record<string, string> = {}): string {
  const more = new URLSearchParams(query).toString();
  return `/workflows/${encoded(name)}${more ? `?${more}` : ""}`;
}
