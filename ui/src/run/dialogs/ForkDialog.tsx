/** A new run from the middle of this one: a copy of its first events, perhaps with other results. */
import { useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { api, body } from "../../api/client";
import { count } from "../../format/numbers";
import { ActError, useAct } from "../../parts/acts";
import { FormDialog } from "../../parts/Dialog";
import { useRunView } from "../context";
import { readEvents } from "../data";
import { findEvent, inputIn } from "../eventSearch";
import { JsonField, parseJson, TextField } from "./JsonField";

export function ForkDialog({ onClose, onDone }: { onClose: () => void; onDone: (id: string) => void }) {
  const { run, selection, node } = useRunView();
  const before = useEventBefore();
  const [typed, setTyped] = useState<string | null>(null);
  const [code, setCode] = useState<"same" | "current">("same");
  const [edits, setEdits] = useState("");
  const id = useId();
  const isSought = typed === null && before.isFetching;
  const at = Number(typed ?? before.data ?? run.events);
  const valid = !isSought && Number.isInteger(at) && at >= 1 && at <= run.events;
  const { value, error } = parseJson(edits);
  const wrong = value !== undefined && (typeof value !== "object" || value === null || Array.isArray(value));
  const act = useAct({
    act: () =>
      body(
        api.POST("/api/v1/runs/{id}/fork", {
          params: { path: { id: run.id } },
          body: { at, code, edits: (value ?? {}) as Record<string, never> },
        }),
      ),
    said: () => "Forked",
    refresh: [["runs"], ["counts"]],
    inForm: true,
    onDone: (answer) => onDone(answer.id),
  });
  const what = selection ? (selection.seq === null ? selection.node : `${selection.node} #${selection.seq}`) : null;
  return (
    <FormDialog
      title={what ? `Fork from ${what}` : `Fork ${run.workflow}`}
      submit="Fork"
      busy={act.isPending}
      disabled={!valid || error !== null || wrong}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">
        A new run gets the events up to a number and goes on from there.{" "}
        {what && node ? `What ${node.node} did is not copied: it runs again. ` : ""}
        This run stays as it is.
      </p>
      <TextField
        label="Last event to copy"
        value={isSought ? "" : String(typed ?? before.data ?? run.events)}
        onChange={setTyped}
        mono
        required
        hint={`1 to ${count(run.events)}; the History tab numbers them.`}
      />
      <div className="field">
        <label htmlFor={id}>Code</label>
        <select
          id={id}
          className="input"
          value={code}
          onChange={(event) => setCode(event.target.value as "same" | "current")}
        >
          <option value="same">The version of this run</option>
          <option value="current">The current version</option>
        </select>
      </div>
      <JsonField
        label="Other results"
        value={edits}
        onChange={setEdits}
        rows={3}
        hint={
          wrong ? "An object is needed." : 'By a task\'s number, node or name: {"charge": {"paid": true}}. Optional.'
        }
      />
      <ActError error={act.error} />
    </FormDialog>
  );
}

/** The number of the event before the selected task was scheduled. */
function useEventBefore() {
  const { run, selection, node } = useRunView();
  const when = node?.first_at ?? null;
  const seq = selection?.seq ?? node?.seq ?? null;
  return useQuery({
    queryKey: ["run", run.id, "fork-at", selection?.node, seq, when],
    enabled: when !== null,
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: async () => {
      const found = await findEvent(readEvents(run.id), run.events, when ?? "", (e) =>
        seq !== null
          ? inputIn(e, seq) !== null
          : e.type === "TasksScheduled" && names(e.data as Record<string, unknown>, selection?.node ?? ""),
      );
      return found ? Math.max(found.seq - 1, 1) : run.events;
    },
  });
}

function names(data: Record<string, unknown>, node: string): boolean {
  const nodes = Array.isArray(data.nodes) ? data.nodes : [];
  return data.name === node || nodes.some((n) => String(n).replace(/\[\d+\]/g, "") === node);
}
