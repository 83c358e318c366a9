/** What the run page asks the server for. Nothing here grows with the run: tasks, history and logs come in pages. */
import { keepPreviousData, type QueryClient, useInfiniteQuery, useQueries, useQuery } from "@tanstack/react-query";
import { ApiError, api, body, type Schemas } from "../api/client";
import { TIMELINE_BINS } from "../api/early";
import type { operations } from "../api/schema";
import type { StatusWord } from "../parts/icons";
import { findEvent, inputIn, outputIn, type ReadEvents } from "./eventSearch";
import type { Open } from "./stable";
import type { HistoryEvent, Run, RunTask, Timeline } from "./types";

const TASKS_PAGE_MAX = 500;
export const HISTORY_PAGE = 100;
export const LOG_PAGE = 300;
/** Starts and heartbeats of tasks are no events of a history; they are asked for while something is at work. */
const WORK_POLL_MS = 4_000;

const at = (id: string) => ({ path: { id } });

export const keys = {
  run: (id: string) => ["run", id],
  timeline: (id: string) => ["run", id, "timeline"],
  graph: (id: string) => ["run", id, "graph"],
  tasks: (id: string) => ["run", id, "tasks"],
  task: (id: string) => ["run", id, "task"],
  history: (id: string) => ["run", id, "history"],
  logs: (id: string) => ["run", id, "logs"],
  state: (id: string) => ["run", id, "state"],
  children: (id: string) => ["run", id, "children"],
};

export function useRun(id: string) {
  return useQuery({
    queryKey: [...keys.run(id), "itself"],
    queryFn: () => body(api.GET("/api/v1/runs/{id}", { params: at(id) })) as Promise<Run>,
    placeholderData: keepPreviousData,
    refetchInterval: (query) => (isActive(query.state.data) ? WORK_POLL_MS * 2 : false),
  });
}

export function isActive(run: Pick<Run, "status"> | undefined): boolean {
  return run?.status === "running" || run?.status === "pending";
}

export function useTimeline(id: string) {
  return useQuery({
    queryKey: keys.timeline(id),
    queryFn: ({ signal }) => {
      const params = { ...at(id), query: { bins: TIMELINE_BINS } };
      return body(api.GET("/api/v1/runs/{id}/timeline", { params, signal })) as Promise<Timeline>;
    },
    placeholderData: keepPreviousData,
    refetchInterval: (query) => (query.state.data?.ended === false ? WORK_POLL_MS : false),
  });
}

/** Null for code: what it will do is not known beforehand. */
export function useRunGraph(id: string, on: boolean) {
  return useQuery({
    queryKey: keys.graph(id),
    enabled: on,
    retry: false,
    staleTime: 30_000,
    queryFn: async () => {
      try {
        return (await body(api.GET("/api/v1/runs/{id}/graph", { params: at(id) }))) as Schemas["FlowGraph"];
      } catch (error) {
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) return null;
        throw error;
      }
    },
  });
}

export interface OpenTasks {
  open: Open;
  items: RunTask[];
  more: boolean;
  error: Error | null;
  loading: boolean;
}

/** Tasks of the fan-outs that are open, failed first, then slowest. */
export function useOpenTasks(id: string, open: Open[], live: boolean): OpenTasks[] {
  return useQueries({
    queries: open.map((o) => ({
      queryKey: [...keys.tasks(id), o.node, o.status, o.shown],
      queryFn: ({ signal }: { signal: AbortSignal }) => notableTasks(id, o, signal),
      placeholderData: keepPreviousData,
      refetchInterval: live ? WORK_POLL_MS : (false as const),
    })),
    combine: (results) =>
      results.map((r, n) => ({
        open: open[n] as Open,
        items: r.data?.items ?? [],
        more: r.data?.more ?? false,
        error: r.error,
        loading: r.isPending,
      })),
  });
}

async function notableTasks(id: string, open: Open, signal: AbortSignal): Promise<{ items: RunTask[]; more: boolean }> {
  const items: RunTask[] = [];
  let cursor: string | null = null;
  while (items.length < open.shown) {
    const query = {
      node: open.node,
      order: "notable" as const,
      status: open.status ? [open.status as StatusWord] : undefined,
      limit: Math.min(open.shown - items.length, TASKS_PAGE_MAX),
      cursor,
    };
    const page: Schemas["Page_RunTask_"] = await tasksPage(id, query, signal);
    items.push(...page.items);
    cursor = page.next;
    if (!cursor) break;
  }
  return { items, more: cursor !== null };
}

type TasksQuery = operations["list_tasks"]["parameters"]["query"];

function tasksPage(id: string, query: TasksQuery, signal?: AbortSignal): Promise<Schemas["Page_RunTask_"]> {
  return body(api.GET("/api/v1/runs/{id}/tasks", { params: { ...at(id), query }, signal }));
}

/** One task by its number. */
export function useTask(id: string, seq: number | null, live: boolean) {
  return useQuery({
    queryKey: [...keys.task(id), seq],
    enabled: seq !== null,
    refetchInterval: live ? WORK_POLL_MS : false,
    queryFn: async ({ signal }) => {
      const query = { after: (seq ?? 0) - 1, limit: 1 };
      const page = await tasksPage(id, query, signal);
      return page.items.find((t) => t.seq === seq) ?? null;
    },
  });
}

export function useAttempts(id: string, task: string | null, live: boolean) {
  return useQuery({
    queryKey: [...keys.task(id), task, "attempts"],
    enabled: task !== null,
    refetchInterval: live ? WORK_POLL_MS : false,
    queryFn: async ({ signal }) => {
      const params = { path: { id, task: task ?? "" }, query: { limit: 100 } };
      const page = await body(api.GET("/api/v1/runs/{id}/tasks/{task}/attempts", { params, signal }));
      return { items: page.items, more: page.next !== null };
    },
  });
}

export const readEvents =
  (id: string): ReadEvents =>
  async (after, limit) =>
    (await body(api.GET("/api/v1/runs/{id}/history", { params: { ...at(id), query: { after, limit } } }))).items;

/** What a task was given and gave, from the history. */
export function useTaskValues(id: string, task: RunTask | null | undefined, events: number) {
  const seq = task?.seq ?? null;
  const input = useQuery({
    queryKey: [...keys.task(id), seq, "input"],
    enabled: !!task?.scheduled_at,
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: () => valueIn(id, events, task?.scheduled_at ?? "", (e) => inputIn(e, seq ?? -1)),
  });
  const output = useQuery({
    queryKey: [...keys.task(id), seq, "output", task?.finished_at],
    enabled: task?.status === "success" && !!task.finished_at,
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: () => valueIn(id, events, task?.finished_at ?? "", (e) => outputIn(e, seq ?? -1)),
  });
  return { input, output };
}

async function valueIn(
  id: string,
  events: number,
  when: string,
  read: (event: HistoryEvent) => { value: unknown } | null,
): Promise<{ value: unknown } | null> {
  const event = await findEvent(readEvents(id), events, when, (e) => read(e) !== null);
  return event ? read(event) : null;
}

/** Newest first: events are numbered without gaps, so a page is a span of numbers. */
export function useHistoryPages(id: string, top: number, on: boolean) {
  return useInfiniteQuery({
    queryKey: [...keys.history(id), top],
    enabled: on && top > 0,
    staleTime: Number.POSITIVE_INFINITY,
    initialPageParam: top,
    queryFn: async ({ pageParam }) => {
      const after = Math.max(pageParam - HISTORY_PAGE, 0);
      const items = await readEvents(id)(after, pageParam - after);
      return { items: items.reverse(), after };
    },
    getNextPageParam: (page) => (page.after > 0 ? page.after : undefined),
  });
}

export type LogPage = Schemas["Page_LogEntry_"];

/** Lines newest first; of one task, or of all. */
export function useLogPages(id: string, task: number | string | null, on: boolean, limit = LOG_PAGE) {
  return useInfiniteQuery({
    queryKey: [...keys.logs(id), task, limit],
    enabled: on,
    initialPageParam: "",
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: ({ pageParam, signal }) => {
      const query = { order: "newest" as const, limit, cursor: pageParam || undefined };
      if (task === null) return body(api.GET("/api/v1/runs/{id}/logs", { params: { ...at(id), query }, signal }));
      const path = { id, task: String(task) };
      return body(api.GET("/api/v1/runs/{id}/tasks/{task}/logs", { params: { path, query }, signal }));
    },
    getNextPageParam: (page) => page.next ?? undefined,
  });
}

export function useStates(id: string, on: boolean) {
  return useQuery({
    queryKey: keys.state(id),
    enabled: on,
    queryFn: () => body(api.GET("/api/v1/runs/{id}/state", { params: { ...at(id), query: { limit: 100 } } })),
  });
}

export function useChildren(id: string) {
  return useQuery({
    queryKey: keys.children(id),
    staleTime: 30_000,
    queryFn: () => body(api.GET("/api/v1/runs/{id}/children", { params: { ...at(id), query: { limit: 6 } } })),
  });
}

/** How long the workflow takes as a rule; null where nothing is known. */
export function useUsual(workflow: string | undefined) {
  return useQuery({
    queryKey: ["workflow", workflow, "usual"],
    enabled: !!workflow,
    staleTime: 300_000,
    retry: false,
    queryFn: () =>
      body(
        api.GET("/api/v1/workflows/{name}/stats", { params: { path: { name: workflow ?? "" }, query: { days: 30 } } }),
      ),
  });
}

export function useCurrentVersion(workflow: string | undefined) {
  return useQuery({
    queryKey: ["workflow", workflow, "version"],
    enabled: !!workflow,
    staleTime: 60_000,
    retry: false,
    queryFn: () => body(api.GET("/api/v1/workflows/{name}", { params: { path: { name: workflow ?? "" } } })),
    select: (found) => found.version,
  });
}

/** What changed when events of the history arrive. */
export function refresh(client: QueryClient, id: string, events: HistoryEvent[]): void {
  const again = (queryKey: unknown[]) => void client.invalidateQueries({ queryKey });
  again([...keys.run(id), "itself"]);
  again(keys.timeline(id));
  again(keys.tasks(id));
  again(keys.task(id));
  const types = new Set(events.map((e) => e.type));
  if (types.has("StateSet") || types.has("StateCleared")) again(keys.state(id));
  if (types.has("ChildStarted")) again(keys.children(id));
  again(keys.graph(id));
}

export const LABELS_CHUNK = 50;

/** Names and nodes of tasks by number, in chunks; they never change. */
export function useLabels(id: string, chunks: number[]): RunTask[] {
  return useQueries({
    queries: chunks.map((chunk) => ({
      queryKey: ["run-labels", id, chunk],
      staleTime: Number.POSITIVE_INFINITY,
      queryFn: () => tasksPage(id, { after: chunk * LABELS_CHUNK - 1, limit: LABELS_CHUNK }),
    })),
    combine: allItems,
  });
}

function allItems(results: { data?: { items: RunTask[] } }[]): RunTask[] {
  return results.flatMap((r) => r.data?.items ?? []);
}
