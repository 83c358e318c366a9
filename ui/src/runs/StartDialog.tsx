/** Start a run: the workflow, its input as a form, and what is seldom needed. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { ApiError, api, type Schemas } from "../api/client";
import { FormDialog } from "../parts/Dialog";
import { brief } from "../parts/Payload";
import { checkValue, type FieldErrors, initialValue, type JsonSchema, SchemaForm } from "../parts/SchemaForm";
import { Failed } from "../parts/states";
import { Segments } from "../parts/Tabs";
import { Time } from "../parts/Time";
import { toast } from "../shell/toasts";
import { useGo } from "../shell/url";
import { type AttributeLine, AttributeLines, readAttributes } from "./AttributeLines";
import { inputsQuery, workflowQuery, workflowsQuery } from "./data";

/** In the URL: a dialog without a workflow yet. No workflow has this name. */
export const ANY_WORKFLOW = "?";

export function StartDialog(props: { workflow: string; onWorkflow: (name: string) => void; onClose: () => void }) {
  const name = props.workflow === ANY_WORKFLOW ? "" : props.workflow;
  const workflows = useQuery(workflowsQuery());
  const workflow = useQuery(workflowQuery(name));
  const [sent, setSent] = useState(false);
  const form = useStartForm(workflow.data?.input_schema ?? null, name);
  const go = useGo();
  const start = useMutation({
    mutationFn: () =>
      api.POST("/api/v1/workflows/{name}/runs", {
        params: { path: { name } },
        body: form.request() as Schemas["StartRunRequest"],
      }),
    onSuccess: ({ data }) => {
      if (!data) return;
      toast("status" in data ? "Run started" : "Run accepted; it starts when its time comes");
      go(`/runs/${data.id}`);
    },
  });
  const names = (workflows.data ?? []).map((one) => one.name);
  if (name && !names.includes(name)) names.unshift(name);
  return (
    <FormDialog
      title="Start run"
      submit="Start run"
      onClose={props.onClose}
      busy={start.isPending}
      disabled={!name}
      onSubmit={() => {
        setSent(true);
        if (form.isSendable) start.mutate();
      }}
    >
      <label className="field">
        <span>Workflow</span>
        <select
          className="input"
          value={name}
          onChange={(event) => props.onWorkflow(event.target.value || ANY_WORKFLOW)}
        >
          <option value="">Choose…</option>
          {names.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
        {workflow.data?.description && <small>{workflow.data.description}</small>}
      </label>
      {workflow.error && <Failed error={workflow.error} retry={() => void workflow.refetch()} />}
      {workflow.data && (
        <>
          <RecentInputs name={name} onPick={form.setInput} />
          <InputForm schema={workflow.data.input_schema ?? null} form={form} errors={sent ? form.errors : {}} />
          <MoreOptions form={form} sent={sent} />
        </>
      )}
      {sent && !form.isSendable && <p className="form-error">Correct the fields that are marked.</p>}
      {start.error && (
        <p className="form-error" role="alert">
          {start.error.message} {start.error instanceof ApiError && <code>{start.error.code}</code>}
        </p>
      )}
    </FormDialog>
  );
}

interface StartForm {
  input: unknown;
  setInput: (input: unknown) => void;
  errors: FieldErrors;
  isSendable: boolean;
  key: string;
  setKey: (key: string) => void;
  conflict: Conflict;
  setConflict: (conflict: Conflict) => void;
  delay: string;
  setDelay: (delay: string) => void;
  lines: AttributeLine[];
  setLines: (lines: AttributeLine[]) => void;
  request: () => Record<string, unknown>;
}

type Conflict = "fail" | "attach" | "replace";
const DELAY = /^\s*(?:\d+(?:\.\d+)?\s*(?:ms|s|m|h|d|w)\s*)+$/;

export function isDelay(text: string): boolean {
  return text.trim() === "" || DELAY.test(text);
}

function useStartForm(schema: JsonSchema | null, name: string): StartForm {
  const first = useMemo(() => initialValue(schema), [schema]);
  const [typed, setTyped] = useState<{ of: string; input: unknown } | null>(null);
  const [key, setKey] = useState("");
  const [conflict, setConflict] = useState<Conflict>("fail");
  const [delay, setDelay] = useState("");
  const [lines, setLines] = useState<AttributeLine[]>([]);
  // Input that was typed for another workflow does not fit this one.
  const input = typed?.of === name ? typed.input : first;
  const errors = checkValue(schema, input);
  return {
    input,
    setInput: (next) => setTyped({ of: name, input: next }),
    errors,
    isSendable: Object.keys(errors).length === 0 && isDelay(delay),
    key,
    setKey,
    conflict,
    setConflict,
    delay,
    setDelay,
    lines,
    setLines,
    request: () => ({
      input: input ?? null,
      ...(key && { key, on_conflict: conflict }),
      ...(delay.trim() && { delay: delay.trim() }),
      attributes: readAttributes(lines),
    }),
  };
}

function InputForm({ schema, form, errors }: { schema: JsonSchema | null; form: StartForm; errors: FieldErrors }) {
  const [as, setAs] = useState("form");
  const isEmpty = schema !== null && schema.type === "object" && Object.keys(schema.properties ?? {}).length === 0;
  if (isEmpty && schema?.additionalProperties === false) return <p className="muted">This workflow takes no input.</p>;
  return (
    <div className="start-input">
      {schema && (
        <div className="row">
          <h3 className="h2 grow">Input</h3>
          <Segments
            label="Input as"
            value={as}
            onChange={setAs}
            options={[
              { id: "form", label: "Form" },
              { id: "json", label: "JSON" },
            ]}
          />
        </div>
      )}
      <SchemaForm
        key={as}
        schema={as === "form" ? schema : null}
        label="Input"
        value={form.input}
        onChange={form.setInput}
        errors={errors}
      />
      {!schema && (
        <p className="faint small">
          An object gives arguments by name; any other value is the one argument; nothing is none.
        </p>
      )}
      {as === "json" &&
        Object.entries(errors).map(
          ([at, text]) => at && <p key={at} className="form-error small">{`${at}: ${text}`}</p>,
        )}
    </div>
  );
}

function RecentInputs({ name, onPick }: { name: string; onPick: (input: unknown) => void }) {
  const { data = [] } = useQuery(inputsQuery(name));
  const [picked, setPicked] = useState("");
  // biome-ignore lint/correctness/useExhaustiveDependencies: another workflow has other inputs
  useEffect(() => setPicked(""), [name]);
  if (data.length === 0) return null;
  return (
    <details className="recent">
      <summary>Recent inputs</summary>
      <ul>
        {data.map((one) => (
          <li key={one.run_id}>
            <button
              type="button"
              aria-pressed={picked === one.run_id}
              onClick={() => {
                setPicked(one.run_id);
                onPick(structuredClone(one.input));
              }}
            >
              <code className="clip grow">{brief(one.input)}</code>
              <Time at={one.created_at} className="faint" />
            </button>
          </li>
        ))}
      </ul>
    </details>
  );
}

function MoreOptions({ form, sent }: { form: StartForm; sent: boolean }) {
  return (
    <details className="recent" open={sent && !isDelay(form.delay) ? true : undefined}>
      <summary>Key, delay and attributes</summary>
      <div className="start-more">
        <label className="field">
          <span>Key</span>
          <input
            className="input"
            maxLength={200}
            value={form.key}
            onChange={(event) => form.setKey(event.target.value)}
          />
          <small>Your own id for the run, unique in the namespace.</small>
        </label>
        {form.key && (
          <label className="field">
            <span>If the key is taken</span>
            <select
              className="input"
              value={form.conflict}
              onChange={(event) => form.setConflict(event.target.value as Conflict)}
            >
              <option value="fail">Refuse the start</option>
              <option value="attach">Open the run that has it</option>
              <option value="replace">Cancel the run that has it and start anew</option>
            </select>
          </label>
        )}
        <label className="field">
          <span>Delay</span>
          <input
            className="input"
            placeholder="30s, 1h30m"
            value={form.delay}
            aria-invalid={isDelay(form.delay) ? undefined : true}
            onChange={(event) => form.setDelay(event.target.value)}
          />
          <small>The run begins this long from now; it is pending until then.</small>
        </label>
        <AttributeLines lines={form.lines} onChange={form.setLines} />
      </div>
    </details>
  );
}
