/** Acts on a workflow, each in a dialog that says what will happen. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { ApiError, api, body } from "../api/client";
import { shortVersion } from "../format/ids";
import { FormDialog } from "../parts/Dialog";
import { toast } from "../shell/toasts";

export type ActName = "pause" | "resume" | "rollback" | "delete";

export interface VersionAct {
  name: "current";
  version: string;
}

export type Act = ActName | VersionAct;

/** The error of an act, with its code. */
export function ActError({ error }: { error: Error | null }) {
  if (!error) return null;
  return (
    <p className="form-error" role="alert">
      {error.message} {error instanceof ApiError && <code>{error.code}</code>}
    </p>
  );
}

interface Given {
  workflow: string;
  onClose: () => void;
}

function useAct(given: Given, send: () => Promise<unknown>, done: string, after?: () => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: send,
    onSuccess: async () => {
      toast(done);
      given.onClose();
      after?.();
      await Promise.all(
        [["workflow", given.workflow], ["workflows"], ["pauses"], ["counts"]].map((queryKey) =>
          client.invalidateQueries({ queryKey }),
        ),
      );
    },
  });
}

export function PauseDialog(given: Given) {
  const [reason, setReason] = useState("");
  const act = useAct(
    given,
    () =>
      body(
        api.POST("/api/v1/workflows/{name}/pause", {
          params: { path: { name: given.workflow } },
          body: { reason },
        }),
      ),
    `${given.workflow} is paused`,
  );
  return (
    <FormDialog
      title={`Pause ${given.workflow}`}
      submit="Pause workflow"
      onClose={given.onClose}
      onSubmit={() => act.mutate()}
      busy={act.isPending}
    >
      <p className="muted">
        No more runs of it begin, and no tasks of its runs. What runs now goes on to its end. Starts are accepted and
        wait.
      </p>
      <label className="field">
        <span>Reason</span>
        <input
          className="input"
          value={reason}
          maxLength={1000}
          placeholder="the bank is down"
          onChange={(event) => setReason(event.target.value)}
        />
        <small>Shown with all work that waits for it.</small>
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}

export function ResumeDialog(given: Given) {
  const act = useAct(
    given,
    () => body(api.POST("/api/v1/workflows/{name}/resume", { params: { path: { name: given.workflow } } })),
    `${given.workflow} is resumed`,
  );
  return (
    <Confirm title={`Resume ${given.workflow}`} submit="Resume workflow" given={given} act={act}>
      Runs and tasks that wait for it begin again, in their order.
    </Confirm>
  );
}

export function RollBackDialog(given: Given & { current: string; previous: string | null; ramp: string | null }) {
  const act = useAct(
    given,
    () => body(api.POST("/api/v1/workflows/{name}/rollback", { params: { path: { name: given.workflow } } })),
    given.ramp ? "The ramp has ended" : `Rolled back to ${shortVersion(given.previous ?? "")}`,
  );
  return (
    <Confirm
      title={given.ramp ? `End the ramp of ${given.workflow}` : `Roll back ${given.workflow}`}
      submit={given.ramp ? "End the ramp" : `Roll back to ${shortVersion(given.previous ?? "")}`}
      given={given}
      act={act}
      danger
    >
      {given.ramp ? (
        <>
          No new run gets <code>{shortVersion(given.ramp)}</code> any more; all get{" "}
          <code>{shortVersion(given.current)}</code>. Runs under way keep their version.
        </>
      ) : (
        <>
          New runs get <code>{shortVersion(given.previous ?? "")}</code> instead of{" "}
          <code>{shortVersion(given.current)}</code>. Runs under way keep their version.
        </>
      )}
    </Confirm>
  );
}

export function CurrentDialog(given: Given & { version: string; current: string }) {
  const [part, setPart] = useState("100");
  const percent = Number(part);
  const fits = percent > 0 && percent <= 100;
  const act = useAct(
    given,
    () =>
      body(
        api.POST("/api/v1/workflows/{name}/current", {
          params: { path: { name: given.workflow } },
          body: { version: given.version, ramp_percent: percent },
        }),
      ),
    percent === 100 ? `${shortVersion(given.version)} is current` : `${shortVersion(given.version)} gets ${part} %`,
  );
  return (
    <FormDialog
      title={`Make ${shortVersion(given.version)} current`}
      submit={percent === 100 ? `Give ${shortVersion(given.version)} to new runs` : `Give it to ${part} % of new runs`}
      onClose={given.onClose}
      onSubmit={() => act.mutate()}
      busy={act.isPending}
      disabled={!fits}
    >
      <p className="muted">
        New runs of {given.workflow} get <code>{shortVersion(given.version)}</code> instead of{" "}
        <code>{shortVersion(given.current)}</code>. Runs under way keep their version.
      </p>
      <label className="field">
        <span>Part of new runs, in percent</span>
        <input
          className="input"
          type="number"
          min={0.1}
          max={100}
          step="any"
          value={part}
          onChange={(event) => setPart(event.target.value)}
        />
        <small>
          Below 100 the other runs stay with {shortVersion(given.current)}, until you roll back or give it to all.
        </small>
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}

export function DeleteDialog(given: Given & { active: number; onDeleted: () => void }) {
  const act = useAct(
    given,
    () => api.DELETE("/api/v1/workflows/{name}", { params: { path: { name: given.workflow } } }),
    `${given.workflow} is deleted`,
    given.onDeleted,
  );
  return (
    <Confirm title={`Delete ${given.workflow}`} submit="Delete workflow" given={given} act={act} danger>
      It takes no new runs.{" "}
      {given.active > 0
        ? `Its ${given.active} active ${given.active === 1 ? "run continues" : "runs continue"}, and `
        : ""}
      {given.active > 0 ? "history" : "History"} stays. Deploying it again restores it.
    </Confirm>
  );
}

function Confirm(props: {
  title: string;
  submit: string;
  given: Given;
  act: { mutate: () => void; isPending: boolean; error: Error | null };
  danger?: boolean;
  children: ReactNode;
}) {
  return (
    <FormDialog
      title={props.title}
      submit={props.submit}
      danger={props.danger}
      onClose={props.given.onClose}
      onSubmit={() => props.act.mutate()}
      busy={props.act.isPending}
    >
      <p className="muted">{props.children}</p>
      <ActError error={props.act.error} />
    </FormDialog>
  );
}
