/** A new run of the same workflow, with the same or another input. */
import { useState } from "react";
import { api, body } from "../../api/client";
import { ActError, useAct } from "../../parts/acts";
import { FormDialog } from "../../parts/Dialog";
import { jsonText, Payload } from "../../parts/Payload";
import { callOf } from "../copyAs";
import { useCurrentVersion } from "../data";
import type { Run } from "../types";
import { JsonField, parseJson, TextField } from "./JsonField";

export function RerunDialog(props: { run: Run; edit: boolean; onClose: () => void; onDone: (id: string) => void }) {
  const { run } = props;
  const { args, kwargs } = callOf(run.input);
  const byPosition = args.length > 0;
  const before = jsonText(byPosition ? args : kwargs);
  const [text, setText] = useState(before);
  const [key, setKey] = useState("");
  const current = useCurrentVersion(run.workflow).data;
  const { value, error } = parseJson(text);
  const act = useAct({
    act: () => body(api.POST("/api/v1/runs/{id}/rerun", { params: { path: { id: run.id } }, body: given() })),
    said: () => "Started",
    refresh: [["runs"], ["counts"]],
    inForm: true,
    onDone: (answer) => props.onDone(answer.id),
  });
  const given = () => {
    const named = key.trim() ? { key: key.trim() } : {};
    if (!props.edit || text.trim() === before.trim()) return named;
    return byPosition && Array.isArray(value) ? { ...named, args: value, kwargs } : { ...named, input: value };
  };
  const wrong = props.edit && byPosition && !error && !Array.isArray(value);
  return (
    <FormDialog
      title={props.edit ? `Start ${run.workflow} like this` : `Rerun ${run.workflow}?`}
      submit={props.edit ? "Start run" : "Rerun"}
      busy={act.isPending}
      disabled={error !== null || wrong}
      onClose={props.onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">
        A new run from the beginning, with the same attributes
        {current && current !== run.version ? ` and the current version, ${current.slice(0, 12)}` : ""}. This one stays
        as it is.
      </p>
      {props.edit ? (
        <JsonField
          label={byPosition ? "Arguments, by position" : "Input"}
          value={text}
          onChange={setText}
          rows={10}
          hint={
            wrong ? "A list of arguments is needed." : byPosition ? "A list." : "An object with the arguments by name."
          }
        />
      ) : (
        <Payload value={byPosition ? args : kwargs} />
      )}
      <TextField
        label="Key"
        value={key}
        onChange={setKey}
        hint="Your own id of the run, unique in the namespace. Optional."
        mono
      />
      <ActError error={act.error} />
    </FormDialog>
  );
}
