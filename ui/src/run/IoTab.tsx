/** What the run was given, and what it gave. */
import { bytes } from "../format/numbers";
import { Payload } from "../parts/Payload";
import { useRunView } from "./context";
import { ErrorView } from "./panel/ErrorView";

export function sizeOf(value: unknown): string {
  return bytes(new Blob([JSON.stringify(value) ?? ""]).size);
}

export function IoTab() {
  const { run, active } = useRunView();
  return (
    <div className="scroll grow">
      <div className="io">
        <div>
          <h2 className="h2">
            Input <span className="faint small">{sizeOf(run.input)}</span>
          </h2>
          <Payload value={run.input} />
        </div>
        <div>
          <h2 className="h2">
            Output {run.status === "success" && <span className="faint small">{sizeOf(run.result ?? null)}</span>}
          </h2>
          {run.status === "success" ? (
            <Payload value={run.result ?? null} />
          ) : run.error ? (
            <ErrorView error={run.error} />
          ) : (
            <div className="code faint">
              {active ? "Not yet: the run has not ended." : "None: the run was cancelled."}
            </div>
          )}
        </div>
        {Object.keys(run.attributes ?? {}).length > 0 && (
          <div>
            <h2 className="h2">Attributes</h2>
            <Payload value={run.attributes} />
          </div>
        )}
      </div>
    </div>
  );
}
