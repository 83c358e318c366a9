/** A field for JSON. What does not parse is named at once. */
import { useId, useMemo } from "react";

export function parseJson(text: string): { value: unknown; error: string | null } {
  if (text.trim() === "") return { value: undefined, error: null };
  try {
    return { value: JSON.parse(text) as unknown, error: null };
  } catch (error) {
    return { value: undefined, error: error instanceof Error ? error.message : "This is no JSON." };
  }
}

export function JsonField(props: {
  label: string;
  value: string;
  onChange: (text: string) => void;
  rows?: number;
  hint?: string;
}) {
  const id = useId();
  const error = useMemo(() => parseJson(props.value).error, [props.value]);
  return (
    <div className="field">
      <label htmlFor={id}>{props.label}</label>
      <textarea
        id={id}
        className="input mono"
        rows={props.rows ?? 5}
        spellCheck={false}
        value={props.value}
        aria-invalid={error === null ? undefined : true}
        aria-describedby={`${id}-hint`}
        onChange={(event) => props.onChange(event.target.value)}
      />
      <p id={`${id}-hint`} className={error ? "form-error small" : "faint small"}>
        {error ?? props.hint ?? ""}
      </p>
    </div>
  );
}

export function TextField(props: {
  label: string;
  value: string;
  onChange: (text: string) => void;
  hint?: string;
  list?: string[];
  mono?: boolean;
  required?: boolean;
}) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{props.label}</label>
      <input
        id={id}
        className={`input ${props.mono ? "mono" : ""}`}
        value={props.value}
        list={props.list?.length ? `${id}-list` : undefined}
        required={props.required}
        autoComplete="off"
        onChange={(event) => props.onChange(event.target.value)}
      />
      {props.list && props.list.length > 0 && (
        <datalist id={`${id}-list`}>
          {props.list.map((item) => (
            <option key={item} value={item} />
          ))}
        </datalist>
      )}
      {props.hint && <p className="faint small">{props.hint}</p>}
    </div>
  );
}
