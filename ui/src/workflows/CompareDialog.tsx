/** Two versions side by side in time: the lines in which they differ. */
import { useMemo } from "react";
import { shortVersion } from "../format/ids";
import { Dialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { Failed, Skeleton } from "../parts/states";
import { DiffCount, DiffLines } from "./DiffLines";
import { textOf, useDefinition } from "./data";
import { diffCounts, lineDiff } from "./lineDiff";

export function CompareDialog(props: {
  name: string;
  versions: string[];
  from: string;
  to: string;
  onChange: (from: string, to: string) => void;
  onClose: () => void;
}) {
  return (
    <Dialog label={`Compare versions of ${props.name}`} className="wide-dialog" onClose={props.onClose}>
      <div className="dialog-form">
        <div className="row">
          <h2 className="h2 grow">Compare versions</h2>
          <button type="button" className="btn ghost icon sm" aria-label="Close" onClick={props.onClose}>
            <Icon name="x" size={14} />
          </button>
        </div>
        <div className="row compare-pair">
          <Choice
            label="From"
            value={props.from}
            versions={props.versions}
            onChange={(v) => props.onChange(v, props.to)}
          />
          <button
            type="button"
            className="btn ghost icon"
            aria-label="Swap versions"
            title="Swap versions"
            onClick={() => props.onChange(props.to, props.from)}
          >
            <Icon name="updown" />
          </button>
          <Choice
            label="To"
            value={props.to}
            versions={props.versions}
            onChange={(v) => props.onChange(props.from, v)}
          />
        </div>
        <Difference name={props.name} from={props.from} to={props.to} />
      </div>
    </Dialog>
  );
}

function Choice(props: { label: string; value: string; versions: string[]; onChange: (version: string) => void }) {
  const known = props.versions.includes(props.value) ? props.versions : [props.value, ...props.versions];
  return (
    <label className="field grow">
      <span>{props.label}</span>
      <select className="input mono" value={props.value} onChange={(event) => props.onChange(event.target.value)}>
        {known.map((version) => (
          <option key={version} value={version}>
            {shortVersion(version)}
          </option>
        ))}
      </select>
    </label>
  );
}

function Difference({ name, from, to }: { name: string; from: string; to: string }) {
  const before = useDefinition(name, from);
  const after = useDefinition(name, to);
  const lines = useMemo(
    () => (before.data && after.data ? lineDiff(textOf(before.data), textOf(after.data)) : null),
    [before.data, after.data],
  );
  const failed = before.error ? before : after.error ? after : null;
  if (failed?.error) return <Failed error={failed.error} retry={() => void failed.refetch()} />;
  if (!lines) return <Skeleton rows={6} height={24} />;
  if (before.data?.kind === "code" || after.data?.kind === "code")
    return (
      <p className="muted">
        A version of code is made from its source on the workers. The server keeps no document of it, so there is
        nothing to compare here: use your version control.
      </p>
    );
  const counts = diffCounts(lines);
  if (counts.added + counts.removed === 0) return <p className="muted">The two versions have the same text.</p>;
  return (
    <div className="diff">
      <div className="eyebrow">
        <span className="mono">{shortVersion(from)}</span> to <span className="mono">{shortVersion(to)}</span>:{" "}
        <DiffCount {...counts} />
      </div>
      <DiffLines lines={lines} context={3} numbers />
    </div>
  );
}
