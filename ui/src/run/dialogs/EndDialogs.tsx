/** Dialogs that stop a run. Each says what will happen. */
import { useState } from "react";
import { api, body } from "../../api/client";
import { ActError, useAct } from "../../parts/acts";
import { FormDialog } from "../../parts/Dialog";
import { isActive, keys } from "../data";
import type { Run } from "../types";
import { TextField } from "./JsonField";

interface EndProps {
  run: Run;
  onClose: () => void;
  onRequest: (word: string | null) => void;
}

const nameOf = (run: Run) => run.key ?? run.workflow;
const refresh = (run: Run) => [keys.run(run.id), ["run"], ["runs"], ["counts"]];

function ReasonDialog(props: {
  title: string;
  submit: string;
  asked: string;
  said: string;
  danger?: boolean;
  children: React.ReactNode;
  run: Run;
  onClose: () => void;
  onRequest: (word: string | null) => void;
  act: (reason: string | undefined) => Promise<unknown>;
}) {
  const [reason, setReason] = useState("");
  const act = useAct<string | undefined, unknown>({
    act: props.act,
    said: () => props.said,
    refresh: refresh(props.run),
    inForm: true,
    onDone: (answer) => {
      // The answer is the run as it is now; until it has stopped, the page says that it was asked to.
      props.onRequest(isActive(answer as Run) ? props.asked : null);
      props.onClose();
    },
  });
  return (
    <FormDialog
      title={props.title}
      submit={props.submit}
      danger={props.danger}
      busy={act.isPending}
      onClose={props.onClose}
      onSubmit={() => act.mutate(reason.trim() || undefined)}
    >
      <p className="muted">{props.children}</p>
      <TextField label="Reason" value={reason} onChange={setReason} hint="Kept in the history and shown to people." />
      <ActError error={act.error} />
    </FormDialog>
  );
}

export function CancelDialog(props: EndProps) {
  const params = { path: { id: props.run.id } };
  return (
    <ReasonDialog
      {...props}
      title={`Cancel ${nameOf(props.run)}?`}
      submit="Cancel run"
      asked="Cancelling…"
      said="Cancel requested"
      danger
      act={(reason) => body(api.POST("/api/v1/runs/{id}/cancel", { params, body: { reason: reason ?? "" } }))}
    >
      Its code is cancelled like a coroutine: it can clean up and undo what it did, then the run ends as cancelled.
      Running tasks are told to stop.
    </ReasonDialog>
  );
}

export function TerminateDialog(props: EndProps) {
  const params = { path: { id: props.run.id } };
  return (
    <ReasonDialog
      {...props}
      title={`Terminate ${nameOf(props.run)}?`}
      submit="Terminate run"
      asked="Terminating…"
      said="Terminated"
      danger
      act={(reason) => body(api.POST("/api/v1/runs/{id}/terminate", { params, body: { reason: reason ?? "" } }))}
    >
      The run ends at once, in any state. None of its code runs and nothing is undone. Cancel lets the code clean up
      instead.
    </ReasonDialog>
  );
}

export function PauseDialog(props: EndProps) {
  const params = { path: { id: props.run.id } };
  return (
    <ReasonDialog
      {...props}
      title={`Pause ${nameOf(props.run)}?`}
      submit="Pause run"
      asked="Pausing…"
      said="Paused"
      onRequest={() => props.onRequest(null)}
      act={(reason) => body(api.POST("/api/v1/runs/{id}/pause", { params, body: { reason: reason ?? "" } }))}
    >
      Nothing of it starts until it is resumed. Running tasks end as usual; timers and deadlines keep their dates.
    </ReasonDialog>
  );
}

export function DeleteDialog(props: { run: Run; onClose: () => void; onDone: () => void }) {
  const act = useAct({
    act: () => api.DELETE("/api/v1/runs/{id}", { params: { path: { id: props.run.id } } }),
    said: () => "Deleted",
    refresh: [["runs"], ["counts"]],
    inForm: true,
    onDone: () => props.onDone(),
  });
  return (
    <FormDialog
      title={`Delete ${nameOf(props.run)}?`}
      submit="Delete run"
      danger
      busy={act.isPending}
      onClose={props.onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">Its history, tasks, logs and values are deleted. This cannot be undone.</p>
      <ActError error={act.error} />
    </FormDialog>
  );
}
