import { useState } from "react";
import { api, body } from "../api/client";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { type LimitItem, nameOf } from "./rows";

const SCOPES = ["queue", "workflow", "task", "namespace"] as const;
type Scope = (typeof SCOPES)[number];

/** All limits of one scope at once: a field that is empty is no limit. */
export function LimitDialog({ item, onClose }: { item?: LimitItem; onClose: () => void }) {
  const [scope, setScope] = useState<Scope>((item?.scope as Scope) ?? "queue");
  const [name, setName] = useState(item?.name ?? "");
  const [slots, setSlots] = useState(item?.concurrency ? String(item.concurrency) : "");
  const [starts, setStarts] = useState(item?.rate ? String(item.rate.count) : "");
  const [per, setPer] = useState(item?.rate ? String(item.rate.per_s) : "1");
  const [burst, setBurst] = useState(item?.rate?.burst ? String(item.rate.burst) : "");
  const needsName = scope !== "namespace";
  const act = useAct({
    act: () =>
      body(
        api.PUT("/api/v1/limits/{scope}/{name}", {
          params: { path: { scope, name: needsName ? name.trim() : "-" } },
          body: {
            concurrency: slots ? Number(slots) : null,
            rate: starts ? { count: Number(starts), per: perValue(per), burst: burst ? Number(burst) : null } : null,
          },
        }),
      ),
    said: (rule) => `Limits of ${nameOf(rule)} set`,
    refresh: [["limits"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={item ? `Limits of ${nameOf(item)}` : "Set limit"}
      submit="Set limits"
      busy={act.isPending}
      disabled={(needsName && !name.trim()) || (!slots && !starts)}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <div className="limit-form">
        <label className="field">
          <span>Of</span>
          <select
            className="input"
            value={scope}
            disabled={item !== undefined}
            onChange={(event) => setScope(event.target.value as Scope)}
          >
            {SCOPES.map((s) => (
              <option key={s} value={s}>
                {s === "namespace" ? "the whole namespace" : `a ${s}`}
              </option>
            ))}
          </select>
        </label>
        {needsName && (
          <label className="field">
            <span>Name</span>
            <input
              className="input"
              value={name}
              disabled={item !== undefined}
              onChange={(event) => setName(event.target.value)}
              spellCheck={false}
            />
          </label>
        )}
        <NumberField
          label="At a time, at most"
          hint="Tasks that run together; no limit if empty"
          value={slots}
          onChange={setSlots}
        />
        <NumberField
          label="Starts, at most"
          hint="Within the time beside; no limit if empty"
          value={starts}
          onChange={setStarts}
        />
        <label className="field">
          <span>Within</span>
          <input className="input" value={per} onChange={(event) => setPer(event.target.value)} spellCheck={false} />
          <small>Seconds, or text such as 1m</small>
        </label>
        <NumberField label="Burst" hint="How many may start at once" value={burst} onChange={setBurst} />
      </div>
      <p className="muted small">
        Work that waits already is held to it as well; work that runs continues. This replaces all limits of the {scope}
        .
      </p>
      <ActError error={act.error} />
    </FormDialog>
  );
}

function perValue(text: string): number | string {
  const plain = text.trim() || "1";
  return /^[\d.]+$/.test(plain) ? Number(plain) : plain;
}

function NumberField(props: { label: string; hint: string; value: string; onChange: (value: string) => void }) {
  return (
    <label className="field">
      <span>{props.label}</span>
      <input
        className="input"
        type="number"
        min={0}
        step="any"
        value={props.value}
        onChange={(event) => props.onChange(event.target.value)}
      />
      <small>{props.hint}</small>
    </label>
  );
}
