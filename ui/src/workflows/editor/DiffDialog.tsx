/** What publishing would change: the lines, and the tasks by name. */
import type { Schemas } from "../../api/client";
import { shortVersion } from "../../format/ids";
import { Dialog } from "../../parts/Dialog";
import { DiffCount, DiffLines } from "../DiffLines";
import { type DiffLine, diffCounts } from "../lineDiff";

export function DiffDialog(props: {
  version: string;
  lines: DiffLine[];
  changes: Schemas["FlowChanges"] | null;
  isValid: boolean;
  onClose: () => void;
}) {
  const counts = diffCounts(props.lines);
  return (
    <Dialog label="Changes of the draft" className="wide-dialog" onClose={props.onClose}>
      <div className="dialog-form">
        <h2 className="h2">
          {props.version ? (
            <>
              Draft against <span className="mono">{shortVersion(props.version)}</span>:{" "}
            </>
          ) : (
            "New flow: "
          )}
          <DiffCount {...counts} />
        </h2>
        {props.changes && <Changes changes={props.changes} />}
        {counts.added + counts.removed > 0 ? (
          <div className="diff">
            <DiffLines lines={props.lines} context={3} numbers />
          </div>
        ) : (
          <p className="muted">The draft has the same text as what is published.</p>
        )}
        <div className="row dialog-buttons">
          <span className="grow muted small">
            {props.isValid ? "The draft is valid and can be published." : "It can be published once it is valid."}
          </span>
          <button type="button" className="btn primary" onClick={props.onClose}>
            Back to the draft
          </button>
        </div>
      </div>
    </Dialog>
  );
}

function Changes({ changes }: { changes: Schemas["FlowChanges"] }) {
  const rows: [string, string[]][] = [
    ["Added", changes.added],
    ["Changed", changes.changed],
    ["Removed", changes.removed],
    ["Other keys", changes.other],
  ];
  const shown = rows.filter(([, names]) => names.length > 0);
  if (shown.length === 0) return <p className="muted">Comments and layout only: it stays the same version.</p>;
  return (
    <dl className="kv">
      {shown.map(([word, names]) => (
        <div key={word} className="kv-row">
          <dt>{word}</dt>
          <dd className="mono">{names.join(", ")}</dd>
        </div>
      ))}
    </dl>
  );
}
