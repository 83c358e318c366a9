/** "Filter": a menu that writes query text. First the field, then its value. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, type KeyboardEvent, useEffect, useId, useRef, useState } from "react";
import { Icon, StatusMark } from "../parts/icons";
import { sentenceCase } from "../parts/Status";
import { withRange } from "./brush";
import { ALL_WAITS, chooseValue, fieldLabel, toggleValue, valuesOf, withTerm } from "./chips";
import { workflowsQuery } from "./data";
import { attributeField, STATUSES, written } from "./query";

const FIELDS = ["status", "workflow", "created", "waiting_on", "attribute", "key", "version", "error_code", "parent"];
const FLAGS = ["stuck", "paused"] as const;
const AGES = [
  ["-15m", "Last 15 minutes"],
  ["-1h", "Last hour"],
  ["-6h", "Last 6 hours"],
  ["-24h", "Last 24 hours"],
  ["-7d", "Last 7 days"],
] as const;
const WORKFLOWS_SHOWN = 50;

interface Props {
  text: string;
  attributes: string[];
  onChange: (text: string) => void;
}

export function FilterMenu(props: Props) {
  const [field, setField] = useState<string | null>(null);
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => {
    if (!open) return;
    const away = (event: Event) => !root.current?.contains(event.target as Node) && setOpen(false);
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: each step begins at its first control
  useEffect(() => {
    if (open) root.current?.querySelector<HTMLElement>(".menu input, .menu button")?.focus();
  }, [open, field]);
  const close = () => {
    setOpen(false);
    setField(null);
    root.current?.querySelector<HTMLElement>("button")?.focus();
  };
  const done = (text: string) => {
    props.onChange(text);
    close();
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: keys of the button and the menu inside it
    <div className="filter-menu" ref={root} onKeyDown={(event) => open && menuKeys(event, root.current, close)}>
      <button
        type="button"
        className="chip add"
        aria-haspopup="dialog"
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        onClick={() => {
          setField(null);
          setOpen(!open);
        }}
      >
        <Icon name="plus" size={12} />
        Filter
      </button>
      {open && (
        <div className="menu" id={id} role="dialog" aria-label={field ? `Filter by ${field}` : "Add a filter"}>
          {field === null ? (
            <FieldList onPick={setField} flag={(name) => done(withTerm(props.text, name))} />
          ) : (
            <Values field={field} {...props} onChange={done} />
          )}
        </div>
      )}
    </div>
  );
}

function menuKeys(event: KeyboardEvent, root: HTMLElement | null, close: () => void): void {
  if (event.key === "Escape") {
    event.stopPropagation();
    close();
  }
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || (event.target as HTMLElement).tagName === "SELECT") return;
  event.preventDefault();
  const all = [...(root?.querySelectorAll<HTMLElement>(".menu button, .menu input") ?? [])];
  const at = all.indexOf(document.activeElement as HTMLElement);
  all.at((at + step + all.length) % all.length)?.focus();
}

function FieldList({ onPick, flag }: { onPick: (field: string) => void; flag: (name: string) => void }) {
  return (
    <>
      {FIELDS.map((field) => (
        <button key={field} type="button" onClick={() => onPick(field)}>
          {field === "attribute" ? "Attribute" : fieldLabel(field)}
          <Icon name="right" size={14} className="right" />
        </button>
      ))}
      <hr />
      {FLAGS.map((name) => (
        <button key={name} type="button" onClick={() => flag(name)}>
          {sentenceCase(name)}
        </button>
      ))}
    </>
  );
}

function Values({ field, text, attributes, onChange }: Props & { field: string }) {
  switch (field) {
    case "status":
      return STATUSES.map((status) => (
        <Choice
          key={status}
          checked={valuesOf(text, field).includes(status)}
          onClick={() => onChange(toggleValue(text, field, status))}
        >
          <span className={`st st-${status}`}>
            <StatusMark status={status} />
            {sentenceCase(status)}
          </span>
        </Choice>
      ));
    case "created":
      return AGES.map(([age, words]) => (
        <Choice
          key={age}
          onClick={() => onChange(withTerm(withRange(text, null, { from: 0, to: 0 }), `created > ${age}`))}
        >
          {words}
        </Choice>
      ));
    case "waiting_on":
      return ALL_WAITS.map((wait) => (
        <Choice
          key={wait}
          checked={valuesOf(text, field).includes(wait)}
          onClick={() => onChange(chooseValue(text, field, wait))}
        >
          {sentenceCase(wait.replaceAll("_", " "))}
        </Choice>
      ));
    case "workflow":
      return <Workflows text={text} onChange={onChange} />;
    case "attribute":
      return <AttributeForm names={attributes} onDone={(term) => onChange(withTerm(text, term))} />;
    default:
      return <TextForm field={field} onDone={(term) => onChange(withTerm(text, term))} />;
  }
}

function Choice(props: { checked?: boolean; onClick: () => void; children: React.ReactNode }) {
  return (
    <button type="button" onClick={props.onClick} aria-pressed={props.checked}>
      {props.children}
      {props.checked && <Icon name="check" size={14} className="right" />}
    </button>
  );
}

function Workflows({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  const [part, setPart] = useState("");
  const names = (useQuery(workflowsQuery()).data ?? []).map((workflow) => workflow.name);
  const shown = names.filter((name) => name.toLowerCase().includes(part.toLowerCase())).slice(0, WORKFLOWS_SHOWN);
  const chosen = valuesOf(text, "workflow");
  return (
    <>
      <input
        className="input"
        aria-label="Part of the workflow's name"
        placeholder="Part of the name"
        value={part}
        onChange={(event) => setPart(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || !shown[0]) return;
          event.preventDefault();
          onChange(toggleValue(text, "workflow", shown[0]));
        }}
      />
      {shown.map((name) => (
        <Choice
          key={name}
          checked={chosen.includes(name)}
          onClick={() => onChange(toggleValue(text, "workflow", name))}
        >
          <span className="clip">{name}</span>
        </Choice>
      ))}
      {shown.length === 0 && <p className="nothing faint">No workflow has this in its name.</p>}
    </>
  );
}

const TEXT_OPS = [
  ["=", "is"],
  ["!=", "is not"],
  ["prefix", "begins with"],
] as const;

function OperatorSelect(props: {
  value: string;
  onChange: (op: string) => void;
  ops: readonly (readonly [string, string])[];
}) {
  return (
    <select
      className="input"
      aria-label="Operator"
      value={props.value}
      onChange={(e) => props.onChange(e.target.value)}
    >
      {props.ops.map(([op, words]) => (
        <option key={op} value={op}>
          {words}
        </option>
      ))}
    </select>
  );
}

function TextForm({ field, onDone }: { field: string; onDone: (term: string) => void }) {
  const [op, setOp] = useState("=");
  const [value, setValue] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (value) onDone(`${field} ${op} ${written(value)}`);
  };
  return (
    <form className="filter-form" onSubmit={submit}>
      <input
        className="input"
        aria-label={fieldLabel(field)}
        placeholder={fieldLabel(field)}
        value={value}
        onChange={(event) => setValue(event.target.value)}
      />
      <OperatorSelect value={op} onChange={setOp} ops={TEXT_OPS} />
      <button type="submit" className="btn sm" disabled={!value}>
        Add
      </button>
    </form>
  );
}

const ATTRIBUTE_OPS = [...TEXT_OPS, [">", "is more than"], ["<", "is less than"], ["exists", "exists"]] as const;

function AttributeForm({ names, onDone }: { names: string[]; onDone: (term: string) => void }) {
  const [name, setName] = useState("");
  const [op, setOp] = useState("=");
  const [value, setValue] = useState("");
  const list = useId();
  const ready = name !== "" && (op === "exists" || value !== "");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // Unquoted, so that a number is compared with numbers.
    if (ready) onDone(`${attributeField(name)} ${op}${op === "exists" ? "" : ` ${written(value, false)}`}`);
  };
  return (
    <form className="filter-form" onSubmit={submit}>
      <input
        className="input"
        aria-label="Attribute"
        placeholder="Name"
        list={list}
        value={name}
        onChange={(event) => setName(event.target.value)}
      />
      <datalist id={list}>
        {names.map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
      <OperatorSelect value={op} onChange={setOp} ops={ATTRIBUTE_OPS} />
      {op !== "exists" && (
        <input
          className="input"
          aria-label="Value"
          placeholder="Value"
          value={value}
          onChange={(event) => setValue(event.target.value)}
        />
      )}
      <button type="submit" className="btn sm" disabled={!ready}>
        Add
      </button>
    </form>
  );
}
