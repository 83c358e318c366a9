import { useState } from "react";
import { api, body } from "../api/client";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";

function parsed(text: string): { value: unknown } | { problem: string } {
  if (!text.trim()) return { value: null };
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { problem: (error as Error).message };
  }
}

export function EmitDialog(props: { name: string; onClose: () => void; onSent: () => void }) {
  const [name, setName] = useState(props.name);
  const [payload, setPayload] = useState("{\n  \n}");
  const [key, setKey] = useState("");
  const read = parsed(payload);
  const act = useAct({
    act: () => {
      if ("problem" in read) throw new Error(`The payload is no JSON: ${read.problem}`);
      return body(
        api.POST("/api/v1/events/{name}", {
          params: { path: { name: name.trim() } },
          body: { payload: read.value, key: key.trim() || null },
        }),
      );
    },
    said: (sent) => (sent.is_new ? `${sent.name} emitted` : `${sent.name} with this key existed before, and stands`),
    refresh: [["events-head"]],
    inForm: true,
    onDone: () => {
      props.onSent();
      props.onClose();
    },
  });
  return (
    <FormDialog
      title="Emit event"
      submit={name.trim() ? `Emit ${name.trim()}` : "Emit event"}
      busy={act.isPending}
      disabled={!name.trim() || "problem" in read}
      onClose={props.onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">
        It reaches every run of this namespace that waits for this name and whose condition matches.
      </p>
      <div className="two-fields">
        <label className="field">
          <span>Name</span>
          <input
            className="input mono"
            value={name}
            onChange={(event) => setName(event.target.value)}
            placeholder="order.paid"
            spellCheck={false}
          />
        </label>
        <label className="field">
          <span>
            Key <span className="faint">optional</span>
          </span>
          <input
            className="input mono"
            value={key}
            onChange={(event) => setKey(event.target.value)}
            spellCheck={false}
          />
          <small>Sent twice under one key, it has its effect once</small>
        </label>
        <label className="field all">
          <span>
            Payload <span className="faint">JSON</span>
          </span>
          <textarea
            className="input mono"
            rows={6}
            value={payload}
            aria-invalid={"problem" in read || undefined}
            onChange={(event) => setPayload(event.target.value)}
            spellCheck={false}
          />
          {"problem" in read && <small className="form-error">{read.problem}</small>}
        </label>
      </div>
      <ActError error={act.error} />
    </FormDialog>
  );
}
