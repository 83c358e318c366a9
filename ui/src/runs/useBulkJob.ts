/** A bulk job, kept up to date by the stream; read now and then in case an event is missed. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEvents, useTopic } from "../api/stream";
import { isDone } from "./bulk";
import { type BulkJob, bulkJobQuery } from "./data";

const POLL_MS = 3_000;

export function useBulkJob(id: string) {
  const client = useQueryClient();
  const query = useQuery({
    ...bulkJobQuery(id),
    refetchInterval: ({ state }) => (state.data && isDone(state.data) ? false : POLL_MS),
  });
  useTopic(id && !(query.data && isDone(query.data)) ? `bulk:${id}` : null);
  useEvents<BulkJob>("bulk", (batch) => {
    const latest = batch.findLast((job) => job.id === id);
    if (latest) client.setQueryData(bulkJobQuery(id).queryKey, latest);
  });
  return query;
}
