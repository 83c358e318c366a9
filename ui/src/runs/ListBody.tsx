/** What the list shows when it has no rows: why, and the next step. */
import type { ReactNode } from "react";
import { useSession } from "../api/session";
import { Icon } from "../parts/icons";
import { Empty, Failed, Skeleton } from "../parts/states";
import { useUrl } from "../shell/url";
import { isQueryProblem } from "./QueryBar";
import { ANY_WORKFLOW } from "./StartDialog";
import type { Runs } from "./useRuns";

export function ListBody(props: { text: string; runs: Runs; onClear: () => void; children: ReactNode }) {
  const { runs, text } = props;
  if (runs.error && runs.rows.length === 0)
    return isQueryProblem(runs.error) ? (
      <Empty title="The query has a mistake" action={<ClearButton onClick={props.onClear} />}>
        It is shown under the query. Nothing is listed until it is corrected.
      </Empty>
    ) : (
      <Failed error={runs.error} retry={runs.reload} />
    );
  if (runs.loading) return <Skeleton rows={14} />;
  if (runs.rows.length > 0)
    return (
      <>
        {runs.error && <Failed error={runs.error} retry={runs.reload} />}
        {props.children}
      </>
    );
  if (runs.more)
    return (
      <Empty
        title="Nothing found so far"
        action={
          <button type="button" className="btn" disabled={runs.loadingMore} onClick={runs.loadMore}>
            {runs.loadingMore ? "Looking…" : "Look further back"}
          </button>
        }
      >
        Thousands of runs were looked at and none matches. Older ones may.
      </Empty>
    );
  return text.trim() ? <NoMatch text={text} onClear={props.onClear} /> : <NoRuns />;
}

function ClearButton({ onClick }: { onClick: () => void }) {
  return (
    <button type="button" className="btn" onClick={onClick}>
      Clear filters
    </button>
  );
}

function NoMatch({ text, onClear }: { text: string; onClear: () => void }) {
  return (
    <Empty
      title="No run matches"
      command={`perdure list --query '${text.trim().replaceAll("'", "'\\''")}'`}
      action={<ClearButton onClick={onClear} />}
    >
      Nothing fits this query. Remove a filter, or look further back in time.
    </Empty>
  );
}

function NoRuns() {
  const { may } = useSession();
  const url = useUrl();
  return (
    <Empty
      title="No runs yet"
      command="perdure run WORKFLOW name=value"
      action={
        may("start") && (
          <button type="button" className="btn primary" onClick={() => url.set({ start: ANY_WORKFLOW })}>
            <Icon name="plus" />
            Start run
          </button>
        )
      }
    >
      A run is one execution of a workflow. Runs appear here when code, a schedule, an event or a person starts them.
    </Empty>
  );
}
