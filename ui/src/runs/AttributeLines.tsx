/** Search attributes of a run that is about to start. */
import { Icon } from "../parts/icons";

export interface AttributeLine {
  name: string;
  value: string;
}

const ATTRIBUTES_MAX = 32;

/** A number and a truth value keep their type; in quotes they are texts. */
export function attributeValue(text: string): string | number | boolean {
  const trimmed = text.trim();
  if (/^(true|false)$/.test(trimmed)) return trimmed === "true";
  if (/^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,3})?$/.test(trimmed)) return Number(trimmed);
  return /^".*"$/s.test(trimmed) ? trimmed.slice(1, -1) : text;
}

export function readAttributes(lines: AttributeLine[]): Record<string, string | number | boolean> {
  return Object.fromEntries(
    lines.filter((line) => line.name.trim()).map((line) => [line.name.trim(), attributeValue(line.value)]),
  );
}

export function AttributeLines({
  lines,
  onChange,
}: {
  lines: AttributeLine[];
  onChange: (lines: AttributeLine[]) => void;
}) {
  const set = (n: number, change: Partial<AttributeLine>) =>
    onChange(lines.map((line, i) => (i === n ? { ...line, ...change } : line)));
  return (
    <fieldset className="field group">
      <legend>
        <span>Attributes</span>
      </legend>
      <small>To find the run by. Numbers and true or false keep their type; in quotes they are texts.</small>
      {lines.map((line, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: lines have no name but their place
        <div className="row" key={n}>
          <input
            className="input"
            aria-label={`Name of attribute ${n + 1}`}
            placeholder="Name"
            maxLength={100}
            value={line.name}
            onChange={(event) => set(n, { name: event.target.value })}
          />
          <input
            className="input"
            aria-label={`Value of attribute ${n + 1}`}
            placeholder="Value"
            maxLength={1000}
            value={line.value}
            onChange={(event) => set(n, { value: event.target.value })}
          />
          <button
            type="button"
            className="btn ghost icon sm"
            aria-label={`Remove attribute ${n + 1}`}
            onClick={() => onChange(lines.filter((_, i) => i !== n))}
          >
            <Icon name="x" size={12} />
          </button>
        </div>
      ))}
      <button
        type="button"
        className="btn sm add"
        disabled={lines.length >= ATTRIBUTES_MAX}
        onClick={() => onChange([...lines, { name: "", value: "" }])}
      >
        <Icon name="plus" size={12} />
        Add attribute
      </button>
    </fieldset>
  );
}
