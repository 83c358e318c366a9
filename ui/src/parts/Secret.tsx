import { Copy } from "./Copy";

/** A secret that is shown this once. */
export function Secret({ label, value }: { label: string; value: string }) {
  return (
    <div className="once" role="status">
      <span className="strong">{label}: copy it now, it is not shown again.</span>
      <span className="once-row">
        <input
          className="input mono"
          readOnly
          value={value}
          aria-label={label}
          onFocus={(event) => event.target.select()}
        />
        <Copy text={value} label={`Copy ${label.toLowerCase()}`} />
      </span>
    </div>
  );
}
