import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, body } from "../api/client";
import { shortId } from "../format/ids";
import { count } from "../format/numbers";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { type Holder, type LimitRow, sharesOf } from "./rows";

export function HoldBar({ row }: { row: LimitRow }) {
  const shares = sharesOf(row);
  const label = row.holders.map((h) => `${h.held} ${h.workflow} ${shortId(h.run_id)}`).join(", ") || "nothing is held";
  return (
    <div className="hold" role="img" aria-label={label} title={label}>
      {shares.map((share, n) => (
        <i
          // biome-ignore lint/suspicious/noArrayIndexKey: parts of one bar
          key={n}
          className={share.kind}
          style={{ flexGrow: share.size }}
        />
      ))}
    </div>
  );
}

export function HolderLink({ holder }: { holder: Holder }) {
  return (
    <Link className="link" to={`/runs/${holder.run_id}` as never}>
      {count(holder.held)} {holder.workflow} <span className="mono">{shortId(holder.run_id)}</span>
    </Link>
  );
}

/** "40 of 40" */
export function heldText(row: LimitRow): string {
  if (row.limit === null) return count(row.held);
  return row.held === null ? count(row.limit) : `${count(row.held)} of ${count(row.limit)}`;
}

export type Pausable = { scope: "queue" | "workflow"; name: string };

export function usePause(what: Pausable, onDone?: () => void) {
  const { scope, name } = what;
  return useAct<string>({
    act: (reason) =>
      scope === "queue"
        ? body(api.POST("/api/v1/queues/{name}/pause", { params: { path: { name } }, body: { reason } }))
        : body(api.POST("/api/v1/workflows/{name}/pause", { params: { path: { name } }, body: { reason } })),
    said: () => `${name} paused`,
    refresh: [["limits"], ["queues"]],
    inForm: true,
    onDone,
  });
}

export function useResume({ scope, name }: Pausable) {
  return useAct({
    act: () =>
      scope === "queue"
        ? api.POST("/api/v1/queues/{name}/resume", { params: { path: { name } } })
        : api.POST("/api/v1/workflows/{name}/resume", { params: { path: { name } } }),
    said: () => `${name} resumed`,
    refresh: [["limits"], ["queues"]],
  });
}

export function PauseDialog({ what, onClose }: { what: Pausable; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const act = usePause(what, onClose);
  return (
    <FormDialog
      title={`Pause ${what.scope} ${what.name}`}
      submit={`Pause ${what.name}`}
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate(reason)}
    >
      <p className="muted">
        {what.scope === "queue"
          ? "No more of its tasks start. Running tasks continue; scheduled ones wait."
          : "No more of its runs begin, and no tasks of its runs. Starts are accepted, and wait."}
      </p>
      <label className="field">
        <span>
          Reason <span className="faint">optional, shown with all work that waits for it</span>
        </span>
        <input className="input" value={reason} onChange={(event) => setReason(event.target.value)} />
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}
