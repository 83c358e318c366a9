/** What the server says about a text, a moment after the last key. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { ApiError, api, body, type Schemas } from "../../api/client";
import type { FlowProblem } from "./problems";
import type { Schema } from "./schemaComplete";

export type ValidFlow = Schemas["ValidFlow"];

export interface Verdict {
  text: string;
  /** Null where the document has problems. */
  flow: ValidFlow | null;
  problems: FlowProblem[];
}

const AFTER_MS = 300;

export function useSettled<T>(value: T, afterMs: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), afterMs);
    return () => clearTimeout(timer);
  }, [value, afterMs]);
  return settled;
}

async function validated(text: string, name: string | null, signal: AbortSignal): Promise<Verdict> {
  try {
    const flow = await body(api.POST("/api/v1/workflows/validate", { body: { source: text, name, file: "" }, signal }));
    return { text, flow, problems: flow.warnings };
  } catch (error) {
    if (!(error instanceof ApiError) || !error.problem.problems?.length) throw error;
    return { text, flow: null, problems: error.problem.problems };
  }
}

/** `name` is that of a document which does not say its own. */
export function useVerdict(text: string, name: string | null) {
  const settled = useSettled(text, AFTER_MS);
  const query = useQuery({
    queryKey: ["validate", name, settled],
    queryFn: ({ signal }) => validated(settled, name, signal),
    enabled: settled.trim() !== "",
    staleTime: 60_000,
    gcTime: 60_000,
    placeholderData: keepPreviousData,
  });
  const verdict = query.data;
  return { verdict, error: query.error, retry: query.refetch, isCurrent: verdict?.text === text };
}

export function useFlowSchema() {
  return useQuery({
    queryKey: ["flow-schema"],
    queryFn: ({ signal }) => body(api.GET("/api/v1/schema/flow.json", { signal })) as Promise<Schema>,
    staleTime: 300_000,
  });
}
