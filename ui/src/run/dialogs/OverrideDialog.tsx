/** What becomes of a failed node of a flow: it runs again, is skipped, or has an output that is given here. */
import { useState } from "react";
import { api, body } from "../../api/client";
import { ActError, useAct } from "../../parts/acts";
import { FormDialog } from "../../parts/Dialog";
import { keys } from "../data";
import type { Run } from "../types";
import { JsonField, parseJson } from "./JsonField";

const WAYS = [
  { how: "rerun", label: "Run it again", says: "The node runs from its beginning." },
  { how: "skip", label: "Skip it", says: "The run goes on as if it had been skipped." },
  { how: "set", label: "Set its output", says: "The run goes on as if it had succeeded with this value." },
] as const;

export function OverrideDialog({ run, node, onClose }: { run: Run; node: string; onClose: () => void }) {
  const [how, setHow] = useState<(typeof WAYS)[number]["how"]>("rerun");
  const [text, setText] = useState("");
  const { value, error } = parseJson(text);
  const act = useAct({
    act: () =>
      body(
        api.POST("/api/v1/runs/{id}/override", {
          params: { path: { id: run.id } },
          body: { node, how, ...(how === "set" ? { value: value ?? null } : {}) } as never,
        }),
      ),
    said: () => "The run goes on",
    refresh: [keys.run(run.id), ["run"], ["runs"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={`Decide about ${node}`}
      submit={WAYS.find((w) => w.how === how)?.label ?? "Go on"}
      busy={act.isPending}
      disabled={how === "set" && error !== null}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">The failed run is retried; other nodes that succeeded keep their results.</p>
      <fieldset className="ways">
        <legend className="sr">What becomes of it</legend>
        {WAYS.map((way) => (
          <label key={way.how}>
            <input type="radio" name="how" checked={how === way.how} onChange={() => setHow(way.how)} />
            <span>
              <b>{way.label}</b> <span className="muted">{way.says}</span>
            </span>
          </label>
        ))}
      </fieldset>
      {how === "set" && <JsonField label="Output" value={text} onChange={setText} hint="Any JSON; nothing is null." />}
      <ActError error={act.error} />
    </FormDialog>
  );
}
