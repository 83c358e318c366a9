/** The question before a bulk act: what will happen, to how many runs, and why. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError } from "../api/client";
import { plural } from "../format/numbers";
import { FormDialog } from "../parts/Dialog";
import { SchemaForm, Unparsed } from "../parts/SchemaForm";
import { matching } from "./BulkBar";
import { ACTIONS, queryOf, type Selection } from "./bulk";
import type { RunsRequest } from "./chips";
import { type BulkAction, type BulkJob, countQuery, exactCountQuery, startBulkJob } from "./data";

export function BulkDialog(props: {
  action: BulkAction;
  selection: Selection;
  request: RunsRequest;
  onClose: () => void;
  onStarted: (job: BulkJob) => void;
}) {
  const { action, selection, request } = props;
  const words = ACTIONS[action];
  const [reason, setReason] = useState("");
  const [signal, setSignal] = useState("");
  const [payload, setPayload] = useState<unknown>(undefined);
  const [key] = useState(() => crypto.randomUUID?.() ?? String(Math.random()));
  const query = queryOf(selection, request);
  const total = useQuery({ ...countQuery(request), enabled: selection.all, staleTime: 0 });
  const isRough = total.data?.exact === false;
  const exact = useQuery({
    ...exactCountQuery("cancel", query ?? ""),
    enabled: selection.all && isRough && query !== null,
  });
  const n = selection.all ? (isRough ? exact.data : total.data?.count) : selection.ids.size;
  const isCounting = selection.all && (total.isPending || (isRough && exact.isFetching));
  const runs = n !== undefined ? plural(n, "run") : total.data ? `${matching(total.data)} runs` : "all matching runs";
  const start = useMutation({
    mutationFn: () =>
      startBulkJob({
        action,
        query: query ?? "",
        // One key for this question: an answer that got lost may be sent again.
        key,
        ...(reason && { reason }),
        ...(action === "signal" && { signal, payload: payload ?? null }),
      }),
    onSuccess: props.onStarted,
  });
  const incomplete = action === "signal" && (signal.trim() === "" || payload instanceof Unparsed);
  return (
    <FormDialog
      title={`${words.verb} ${runs}?`}
      submit={`${words.verb} ${runs}`}
      danger={words.danger}
      onClose={props.onClose}
      onSubmit={() => start.mutate()}
      busy={start.isPending}
      disabled={query === null || incomplete || isCounting || n === 0}
    >
      <p>{words.effect}</p>
      {selection.all && <AllMatching query={query} />}
      {isCounting && <p className="muted">Counting…</p>}
      {exact.error && <p className="form-error">{exact.error.message}</p>}
      {action === "signal" && (
        <>
          <label className="field">
            <span>Signal</span>
            <input
              className="input"
              maxLength={200}
              value={signal}
              onChange={(event) => setSignal(event.target.value)}
            />
            <small>The name that the workflows listen for.</small>
          </label>
          <SchemaForm schema={null} label="Payload" value={payload} onChange={setPayload} />
        </>
      )}
      {words.reason && (
        <label className="field">
          <span>Reason</span>
          <input
            className="input"
            maxLength={1000}
            value={reason}
            onChange={(event) => setReason(event.target.value)}
          />
          <small>Kept with each run and in the audit log.</small>
        </label>
      )}
      {start.error && (
        <p className="form-error" role="alert">
          {start.error.message} {start.error instanceof ApiError && <code>{start.error.code}</code>}
        </p>
      )}
    </FormDialog>
  );
}

function AllMatching({ query }: { query: string | null }) {
  if (query === null)
    return (
      <p className="form-error">
        A job takes a query alone. Remove the search text and the wait reasons that are not stored with a run, or select
        rows.
      </p>
    );
  return (
    <>
      <p className="muted">
        {query
          ? "All runs that match now, also those that are not loaded:"
          : "Every run of the namespace. No filter is set."}
      </p>
      {query && <code className="code">{query}</code>}
    </>
  );
}
