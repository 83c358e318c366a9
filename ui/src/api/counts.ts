/** The numbers of the navigation, kept up to date by the stream. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { api, body, type Schemas } from "./client";
import { useEvents, useTopic } from "./stream";

export type Counts = Schemas["Counts"];

export function useCounts(): Counts | undefined {
  const client = useQueryClient();
  useTopic("counts");
  useEvents<Counts>("counts", (batch) => client.setQueryData(["counts"], batch.at(-1)));
  return useQuery({ queryKey: ["counts"], queryFn: () => body(api.GET("/api/v1/counts")), staleTime: 30_000, retry: 1 })
    .data;
}
