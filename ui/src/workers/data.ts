import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { addSample, type Queue, type Sample } from "./queues";

const REFRESH_MS = 3_000;
const WORKERS_SHOWN = 500;

export function useQueues() {
  return useQuery({
    queryKey: ["queues"],
    queryFn: () => body(api.GET("/api/v1/queues", {})),
    select: (page) => page.items,
    refetchInterval: REFRESH_MS,
  });
}

export function useWorkers() {
  return useQuery({
    queryKey: ["workers"],
    queryFn: () => body(api.GET("/api/v1/workers", { params: { query: { limit: WORKERS_SHOWN } } })),
    refetchInterval: REFRESH_MS,
  });
}

export type RunningTask = Schemas["TaskOfWorker"];

/** A worker, and the attempts that it has had for a while. */
export function useWorker(id: string) {
  return useQuery({
    queryKey: ["worker", id],
    queryFn: () => body(api.GET("/api/v1/workers/{id}", { params: { path: { id } } })),
    refetchInterval: (query) => (query.state.error ? false : REFRESH_MS),
    retry: false,
  });
}

const kept: { samples: Sample[]; namespace: string } = { samples: [], namespace: "" };

/** Samples of the queues since the page was first opened, at most an hour. They outlive the page, not the tab. */
export function useSamples(queues: Queue[] | undefined, readAt: number, namespace: string): Sample[] {
  if (kept.namespace !== namespace) {
    kept.namespace = namespace;
    kept.samples = [];
  }
  const [samples, setSamples] = useState(kept.samples);
  useEffect(() => {
    if (!queues || readAt === 0) return;
    kept.samples = addSample(kept.samples, queues, readAt);
    setSamples(kept.samples);
  }, [queues, readAt]);
  return samples;
}
