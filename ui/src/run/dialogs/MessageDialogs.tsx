/** Signals and updates. Names that the run waits for are offered. */
import { useState } from "react";
import { api, body } from "../../api/client";
import { ActError, useAct } from "../../parts/acts";
import { FormDialog } from "../../parts/Dialog";
import { Payload } from "../../parts/Payload";
import { keys } from "../data";
import type { Run } from "../types";
import { JsonField, parseJson, TextField } from "./JsonField";

const UPDATE_WAIT_S = 10;

function awaited(run: Run, on: string): string[] {
  return (run.waiting?.waits ?? []).flatMap((w) => (w.on === on && w.name ? [w.name] : []));
}

export function SignalDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  const names = awaited(run, "signal");
  const [name, setName] = useState(names[0] ?? "");
  const [text, setText] = useState("");
  const { value, error } = parseJson(text);
  const act = useAct({
    act: () =>
      api.POST("/api/v1/runs/{id}/signals/{name}", {
        params: { path: { id: run.id, name: name.trim() } },
        body: (value === undefined ? null : value) as never,
      }),
    said: () => `Signal ${name.trim()} sent`,
    refresh: [keys.run(run.id), ["run"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title="Send a signal"
      submit="Send signal"
      busy={act.isPending}
      disabled={!name.trim() || error !== null}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <TextField
        label="Name"
        value={name}
        onChange={setName}
        list={names}
        mono
        required
        hint={
          names.length > 0 ? `The run waits for ${names.join(", ")}.` : "It is kept until the run's code asks for it."
        }
      />
      <JsonField label="Value" value={text} onChange={setText} hint="Any JSON; nothing is null." />
      <ActError error={act.error} />
    </FormDialog>
  );
}

export function UpdateDialog({ run, onClose }: { run: Run; onClose: () => void }) {
  const names = awaited(run, "update");
  const [name, setName] = useState(names[0] ?? "");
  const [text, setText] = useState("");
  const { value, error } = parseJson(text);
  const act = useAct({
    act: () =>
      body(
        api.POST("/api/v1/runs/{id}/updates/{name}", {
          params: { path: { id: run.id, name: name.trim() } },
          body: { value: value as never, wait: UPDATE_WAIT_S },
        }),
      ),
    refresh: [keys.run(run.id), ["run"]],
    inForm: true,
  });
  return (
    <FormDialog
      title="Send an update"
      submit="Send update"
      busy={act.isPending}
      disabled={!name.trim() || error !== null}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">The run changes something and answers; what it refuses is shown here.</p>
      <TextField label="Name" value={name} onChange={setName} list={names} mono required />
      <JsonField label="Value" value={text} onChange={setText} hint="Any JSON; nothing is null." />
      <ActError error={act.error} />
      {act.data && (
        <div role="status">
          <p className="small muted">
            {act.data.status === "done"
              ? "Answer"
              : `Not answered within ${UPDATE_WAIT_S} s; it will be, under the key ${act.data.key}.`}
          </p>
          {act.data.status === "done" && <Payload value={act.data.value ?? null} />}
        </div>
      )}
    </FormDialog>
  );
}
