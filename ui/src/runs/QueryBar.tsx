/** One filter, shown twice: as text for those who type, as chips for those who point. */
import { type RefObject, useEffect, useId, useMemo, useRef, useState } from "react";
import { ApiError } from "../api/client";
import { Icon } from "../parts/icons";
import { visible } from "../parts/Payload";
import { type Chip, chipsOf, mistakeOf, requestOf, withoutParts } from "./chips";
import { FilterMenu } from "./FilterMenu";
import { FIELD_NAMES, isQuery } from "./query";

/** A query that reads well is applied this long after the last key; any other waits for Enter. */
const APPLY_MS = 700;

export function QueryBar(props: {
  text: string;
  onChange: (text: string, how?: { push?: boolean }) => void;
  error: Error | null;
  attributes: string[];
  input: RefObject<HTMLInputElement | null>;
}) {
  const { text, onChange } = props;
  const [draft, setDraft] = useState(text);
  const applied = useRef(text);
  useEffect(() => {
    if (applied.current !== text) setDraft(text);
    applied.current = text;
  }, [text]);
  const apply = (next: string, how?: { push?: boolean }) => {
    applied.current = next;
    setDraft(next);
    if (next !== text) onChange(next, how);
  };
  useEffect(() => {
    // A word may be the beginning of a term: a search for text waits for Enter.
    if (draft === applied.current || !isQuery(draft) || requestOf(draft).q) return;
    const timer = setTimeout(() => {
      applied.current = draft;
      onChange(draft);
    }, APPLY_MS);
    return () => clearTimeout(timer);
  }, [draft, onChange]);

  const errorId = useId();
  // An error of the text that was sent; while another one is typed it is out of date.
  const error = draft === text && isQueryProblem(props.error) ? props.error : null;
  const select = (chip: Chip) => {
    const box = props.input.current;
    box?.focus();
    box?.setSelectionRange(chip.parts[0]?.start ?? 0, chip.parts[0]?.end ?? draft.length);
  };
  return (
    <section className="query" aria-label="Filter">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          apply(draft, { push: true });
        }}
      >
        <label className={`query-box ${error ? "wrong" : ""}`}>
          <Icon name="filter" size={14} />
          <span className="sr">Query</span>
          <input
            ref={props.input}
            className="mono"
            spellCheck={false}
            autoComplete="off"
            autoCapitalize="off"
            placeholder="status = failed and created > -2h, or words to search for"
            maxLength={4000}
            value={draft}
            aria-invalid={error ? true : undefined}
            aria-describedby={error ? errorId : undefined}
            onChange={(event) => setDraft(event.target.value)}
            onKeyDown={(event) => {
              if (event.key !== "Escape") return;
              event.stopPropagation();
              setDraft(text);
              event.currentTarget.blur();
            }}
          />
          <kbd className="hide-narrow">{draft === text ? "f" : "↵"}</kbd>
        </label>
        {error && <QueryMistake id={errorId} text={text} error={error} input={props.input} />}
      </form>
      <Chips
        text={draft}
        attributes={props.attributes}
        onSelect={select}
        onChange={(next) => apply(next, { push: true })}
      />
    </section>
  );
}

function Chips(props: {
  text: string;
  attributes: string[];
  onChange: (text: string) => void;
  onSelect: (chip: Chip) => void;
}) {
  const { text } = props;
  const chips = useMemo(() => chipsOf(text, Date.now()), [text]);
  return (
    <div className="chips">
      {chips.map((chip) => (
        <span className="chip" key={`${chip.parts[0]?.start} ${chip.name}`}>
          <button
            type="button"
            className="chip-text"
            title={`${chip.name} ${visible(chip.value)}: show in the query`}
            onClick={() => props.onSelect(chip)}
          >
            <span>{chip.name}</span> <b className="clip">{visible(chip.value)}</b>
          </button>
          <button
            type="button"
            aria-label={`Remove filter ${chip.name} ${chip.value}`}
            title="Remove filter"
            onClick={() => props.onChange(withoutParts(text, chip.parts))}
          >
            <Icon name="x" size={12} />
          </button>
        </span>
      ))}
      <FilterMenu text={text} attributes={props.attributes} onChange={props.onChange} />
    </div>
  );
}

export function isQueryProblem(error: Error | null): boolean {
  return error instanceof ApiError && error.status < 500 && /^query\b|query/i.test(error.message);
}

const SHOWN_CHARS = 60;

/** The server's words, and the place in the text that they are about. */
function QueryMistake(props: { id: string; text: string; error: Error; input: RefObject<HTMLInputElement | null> }) {
  const { message, at } = mistakeOf(props.error.message);
  const from = at === null ? 0 : Math.max(0, at - SHOWN_CHARS);
  return (
    <div className="query-mistake" id={props.id} role="alert">
      <p>{visible(message)}</p>
      {at !== null && (
        <pre>
          {visible(`${from > 0 ? "…" : ""}${props.text.slice(from, at + SHOWN_CHARS)}`)}
          {"\n"}
          {`${" ".repeat(at - from + (from > 0 ? 1 : 0))}^`}
        </pre>
      )}
      <p className="row">
        {at !== null && (
          <button
            type="button"
            className="link"
            onClick={() => {
              props.input.current?.focus();
              props.input.current?.setSelectionRange(at, at);
            }}
          >
            Go to the place
          </button>
        )}
        <span className="muted">
          Fields: {FIELD_NAMES.join(", ")}, attr.NAME. Operators: = != &lt; &lt;= &gt; &gt;= in prefix exists. Join with
          and, or, not.
        </span>
      </p>
    </div>
  );
}
