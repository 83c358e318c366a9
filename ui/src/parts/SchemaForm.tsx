/** A form made from a JSON Schema. The value is the caller's; `checkValue` says whether it may be sent. */
import { useId, useState } from "react";
import { Icon } from "./icons";
import { jsonText } from "./Payload";
import { Control, type Place, type Slot } from "./SchemaControls";
import {
  boundsOf,
  type Field,
  type FieldErrors,
  fieldOf,
  type JsonSchema,
  labelOf,
  newItem,
  parseAny,
  parseJson,
  pointer,
  resolve,
  same,
  Unparsed,
} from "./schema";

export { checkValue, type FieldErrors, initialValue, type JsonSchema, Unparsed } from "./schema";

/** `errors` are by JSON pointer. A schema that is missing takes any JSON. */
export function SchemaForm(props: {
  schema: JsonSchema | null | undefined;
  value: unknown;
  onChange: (value: unknown) => void;
  errors?: FieldErrors;
  label?: string;
}) {
  const root = props.schema ?? {};
  const schema = resolve(root, root);
  const place = { root, errors: props.errors ?? {}, at: "", depth: 0 };
  const field = fieldOf(schema, root);
  const wholeError = place.errors[""];
  if (field.kind === "object")
    return (
      <div className="schema-form">
        {wholeError && <FieldError text={wholeError} />}
        <Fields field={field} place={place} value={props.value} onChange={props.onChange} />
      </div>
    );
  return (
    <div className="schema-form">
      <AnyField
        {...place}
        schema={schema}
        label={props.label ?? schema.title ?? "Input"}
        required
        value={props.value}
        onChange={props.onChange}
      />
    </div>
  );
}

function Fields(props: {
  field: Extract<Field, { kind: "object" }>;
  place: Place;
  value: unknown;
  onChange: (value: unknown) => void;
}) {
  const value = asObject(props.value);
  return props.field.fields.map((part) => (
    <AnyField
      key={part.name}
      root={props.place.root}
      errors={props.place.errors}
      at={pointer(props.place.at, part.name)}
      depth={props.place.depth + 1}
      schema={part.schema}
      label={labelOf(part.name, part.schema)}
      required={part.required}
      value={value[part.name]}
      onChange={(next) => props.onChange(withKey(value, part.name, next))}
    />
  ));
}

function asObject(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Unparsed)
    ? (value as Record<string, unknown>)
    : {};
}

function withKey(value: Record<string, unknown>, name: string, next: unknown): Record<string, unknown> {
  if (next !== undefined) return { ...value, [name]: next };
  const { [name]: _gone, ...rest } = value;
  return rest;
}

function AnyField(slot: Slot) {
  const field = fieldOf(slot.schema, slot.root, slot.depth);
  switch (field.kind) {
    case "object":
      return <ObjectField slot={slot} field={field} />;
    case "list":
      return <ListField slot={slot} item={field.item} />;
    case "several":
      return <SeveralField slot={slot} options={field.options} />;
    case "truth":
      return <TruthField slot={slot} />;
    case "json":
      return <JsonField slot={slot} any={field.any === true && slot.at !== ""} />;
    case "fixed":
      return (
        <div className="field">
          <span>{slot.label}</span>
          <code>{JSON.stringify(field.value)}</code>
        </div>
      );
    default:
      return <LineField slot={slot} field={field} />;
  }
}

function FieldError({ id, text }: { id?: string; text: string }) {
  return (
    <span className="form-error small" id={id} role="alert">
      {text}
    </span>
  );
}

function Heading({ slot }: { slot: Slot }) {
  return (
    <span>
      {slot.label}
      {!slot.required && <span className="faint optional"> optional</span>}
    </span>
  );
}

function hintOf(schema: JsonSchema): string {
  return [schema.description, boundsOf(schema)].filter(Boolean).join(" · ");
}

function Hint({ schema, id }: { schema: JsonSchema; id?: string }) {
  const text = hintOf(schema);
  return text ? <small id={id}>{text}</small> : null;
}

/** Names only what is there: an id that is missing is an error to a screen reader. */
function describedBy(id: string, schema: JsonSchema, error?: string): string | undefined {
  const ids = [hintOf(schema) && `${id}-hint`, error && `${id}-error`].filter(Boolean);
  return ids.length > 0 ? ids.join(" ") : undefined;
}

/** A field of one line: label, control, description, error. */
function LineField({ slot, field }: { slot: Slot; field: Field }) {
  const id = useId();
  const error = slot.value instanceof Unparsed ? slot.value.message : slot.errors[slot.at];
  const shared = {
    id,
    className: "input",
    "aria-invalid": error ? true : undefined,
    "aria-describedby": describedBy(id, slot.schema, error),
    "aria-required": slot.required || undefined,
  };
  return (
    <div className="field">
      <label htmlFor={id}>
        <Heading slot={slot} />
      </label>
      <Control slot={slot} field={field} shared={shared} />
      <Hint schema={slot.schema} id={`${id}-hint`} />
      {error && <FieldError id={`${id}-error`} text={error} />}
    </div>
  );
}

function TruthField({ slot }: { slot: Slot }) {
  const id = useId();
  const error = slot.errors[slot.at];
  return (
    <div className="field">
      <label className="row check-line">
        <input
          type="checkbox"
          className="check"
          checked={slot.value === true}
          aria-describedby={describedBy(id, slot.schema)}
          onChange={(event) => slot.onChange(event.target.checked)}
        />
        {slot.label}
      </label>
      <Hint schema={slot.schema} id={`${id}-hint`} />
      {error && <FieldError text={error} />}
    </div>
  );
}

function SeveralField({ slot, options }: { slot: Slot; options: unknown[] }) {
  const chosen = Array.isArray(slot.value) ? slot.value : [];
  const error = slot.errors[slot.at];
  return (
    <fieldset className="field group">
      <legend>
        <Heading slot={slot} />
      </legend>
      <Hint schema={slot.schema} />
      {options.map((option) => (
        <label key={JSON.stringify(option)} className="row check-line">
          <input
            type="checkbox"
            className="check"
            checked={chosen.some((value) => same(value, option))}
            onChange={(event) =>
              // In the order of the schema, whatever the order of the clicks.
              slot.onChange(
                options.filter((o) => (same(o, option) ? event.target.checked : chosen.some((c) => same(c, o)))),
              )
            }
          />
          {typeof option === "string" ? option : JSON.stringify(option)}
        </label>
      ))}
      {error && <FieldError text={error} />}
    </fieldset>
  );
}

function ObjectField({ slot, field }: { slot: Slot; field: Extract<Field, { kind: "object" }> }) {
  const error = slot.errors[slot.at];
  const absent = slot.value === undefined || slot.value === null;
  if (!slot.required && absent)
    return (
      <div className="field">
        <Heading slot={slot} />
        <Hint schema={slot.schema} />
        <button
          type="button"
          className="btn sm add"
          onClick={() => slot.onChange(newItem(slot.schema, slot.root))}
          aria-label={`Add ${slot.label}`}
        >
          <Icon name="plus" size={12} />
          Add
        </button>
      </div>
    );
  return (
    <fieldset className="field group">
      <legend>
        <Heading slot={slot} />
        {!slot.required && <Remove label={`Remove ${slot.label}`} onClick={() => slot.onChange(undefined)} />}
      </legend>
      <Hint schema={slot.schema} />
      {error && <FieldError text={error} />}
      <Fields field={field} place={slot} value={slot.value} onChange={slot.onChange} />
    </fieldset>
  );
}

function Remove({ label, onClick }: { label: string; onClick: () => void }) {
  return (
    <button type="button" className="btn ghost icon sm" aria-label={label} title={label} onClick={onClick}>
      <Icon name="x" size={12} />
    </button>
  );
}

function ListField({ slot, item }: { slot: Slot; item: JsonSchema }) {
  const items = Array.isArray(slot.value) ? slot.value : [];
  const error = slot.errors[slot.at];
  return (
    <fieldset className="field group">
      <legend>
        <Heading slot={slot} /> <span className="faint">{items.length}</span>
      </legend>
      <Hint schema={slot.schema} />
      {items.map((value, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: items have no name but their place
        <div className="list-item" key={n}>
          <AnyField
            {...slot}
            at={pointer(slot.at, n)}
            depth={slot.depth + 1}
            schema={item}
            label={`${slot.label} ${n + 1}`}
            required
            value={value}
            onChange={(next) => slot.onChange(items.map((old, i) => (i === n ? (next ?? null) : old)))}
          />
          <Remove
            label={`Remove ${slot.label} ${n + 1}`}
            onClick={() => slot.onChange(items.filter((_, i) => i !== n))}
          />
        </div>
      ))}
      {error && <FieldError text={error} />}
      <button
        type="button"
        className="btn sm add"
        onClick={() => slot.onChange([...items, newItem(item, slot.root)])}
        aria-label={`Add to ${slot.label}`}
      >
        <Icon name="plus" size={12} />
        Add
      </button>
    </fieldset>
  );
}

function JsonField({ slot, any }: { slot: Slot; any: boolean }) {
  const id = useId();
  const parse = any ? parseAny : parseJson;
  const isWord = any && typeof slot.value === "string" && same(parseAny(slot.value), slot.value);
  const shown = slot.value instanceof Unparsed ? slot.value.text : isWord ? String(slot.value) : jsonText(slot.value);
  const [typed, setTyped] = useState(shown);
  const text = same(parse(typed), slot.value) ? typed : shown;
  const error = slot.value instanceof Unparsed ? slot.value.message : slot.errors[slot.at];
  return (
    <div className="field">
      <label htmlFor={id}>
        <Heading slot={slot} /> <span className="faint small">· {any ? "JSON or text" : "JSON"}</span>
      </label>
      <textarea
        id={id}
        className="input mono"
        rows={Math.min(14, Math.max(any ? 1 : 4, text.split("\n").length))}
        spellCheck={false}
        aria-invalid={error ? true : undefined}
        aria-describedby={describedBy(id, slot.schema, error)}
        value={text}
        onChange={(event) => {
          setTyped(event.target.value);
          slot.onChange(parse(event.target.value));
        }}
      />
      <Hint schema={slot.schema} id={`${id}-hint`} />
      {error && <FieldError id={`${id}-error`} text={error} />}
    </div>
  );
}
