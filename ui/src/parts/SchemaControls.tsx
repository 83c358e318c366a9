/** The controls of one line in a form made from a JSON Schema: text, number, choice, date, time. */
import { useState } from "react";
import { type Field, type FieldErrors, type JsonSchema, parseNumber, same, Unparsed } from "./schema";

/** Where a field is in its form. */
export interface Place {
  root: JsonSchema;
  errors: FieldErrors;
  at: string;
  depth: number;
}

/** A field: what it is called, what it holds. */
export interface Slot extends Place {
  schema: JsonSchema;
  label: string;
  required: boolean;
  value: unknown;
  onChange: (value: unknown) => void;
}

export type Shared = { id: string; className: string; "aria-invalid"?: boolean; "aria-describedby"?: string };

export function Control({ slot, field, shared }: { slot: Slot; field: Field; shared: Shared }) {
  const text = typeof slot.value === "string" ? slot.value : "";
  // An optional field that is emptied is left out; a required text may be empty.
  const change = (next: string) => slot.onChange(next === "" && !slot.required ? undefined : next);
  switch (field.kind) {
    case "number":
      return <NumberControl slot={slot} integer={field.integer} shared={shared} />;
    case "choice":
      return <ChoiceControl slot={slot} options={field.options} shared={shared} />;
    case "date":
      return (
        <input
          {...shared}
          type="date"
          value={text.slice(0, 10)}
          onChange={(e) => slot.onChange(e.target.value || undefined)}
        />
      );
    case "time":
      return (
        <input
          {...shared}
          type="datetime-local"
          step={1}
          value={localTime(text)}
          onChange={(e) => slot.onChange(utcTime(e.target.value))}
        />
      );
    default: {
      if (field.kind === "text" && field.long)
        return <textarea {...shared} rows={4} value={text} onChange={(e) => change(e.target.value)} />;
      const secret = field.kind === "text" && field.secret;
      return (
        <input
          {...shared}
          type={secret ? "password" : "text"}
          autoComplete="off"
          spellCheck={false}
          placeholder={exampleOf(slot.schema)}
          value={text}
          onChange={(e) => change(e.target.value)}
        />
      );
    }
  }
}

function exampleOf(schema: JsonSchema): string | undefined {
  const first = Array.isArray(schema.examples) ? schema.examples[0] : undefined;
  return typeof first === "string" || typeof first === "number" ? String(first) : undefined;
}

/** A time of the viewer's zone for the browser's control, which knows no zones. */
function localTime(text: string): string {
  const at = Date.parse(text);
  if (Number.isNaN(at)) return "";
  const date = new Date(at);
  return new Date(at - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function utcTime(local: string): string | undefined {
  const at = Date.parse(local);
  return Number.isNaN(at) ? undefined : new Date(at).toISOString().replace(".000Z", "Z");
}

/** The text is kept as typed: "1." is on the way to a number. */
function NumberControl({ slot, integer, shared }: { slot: Slot; integer: boolean; shared: Shared }) {
  const shown =
    slot.value instanceof Unparsed ? slot.value.text : typeof slot.value === "number" ? `${slot.value}` : "";
  const [typed, setTyped] = useState(shown);
  const text = same(parseNumber(typed, integer), slot.value) ? typed : shown;
  return (
    <input
      {...shared}
      type="text"
      inputMode={integer ? "numeric" : "decimal"}
      autoComplete="off"
      placeholder={exampleOf(slot.schema)}
      value={text}
      onChange={(event) => {
        setTyped(event.target.value);
        slot.onChange(parseNumber(event.target.value, integer));
      }}
    />
  );
}

function ChoiceControl({ slot, options, shared }: { slot: Slot; options: unknown[]; shared: Shared }) {
  const at = options.findIndex((option) => same(option, slot.value));
  return (
    <select
      {...shared}
      value={at}
      onChange={(event) => {
        const n = Number(event.target.value);
        slot.onChange(n < 0 ? undefined : options[n]);
      }}
    >
      {(at < 0 || !slot.required) && <option value={-1}>{slot.required ? "Choose…" : "–"}</option>}
      {options.map((option, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the options of a schema do not move
        <option key={n} value={n}>
          {typeof option === "string" ? option : JSON.stringify(option)}
        </option>
      ))}
    </select>
  );
}
