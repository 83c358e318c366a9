/** States that the run has set, as they change. */
import { count } from "../format/numbers";
import { brief, Payload } from "../parts/Payload";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { useRunView } from "./context";
import { useStates } from "./data";
import type { HistoryEvent } from "./types";

const BRIEF = 200;

export function StateTab() {
  const { name, run, live, active } = useRunView();
  const states = useStates(name, true);
  if (states.error) return <Failed error={states.error} retry={() => void states.refetch()} />;
  if (!states.data) return <Skeleton rows={4} />;
  if (states.data.items.length === 0)
    return (
      <Empty title="No state" command={`perdure state ${run.key ? `key:${run.key}` : run.id}`}>
        {active
          ? "Code sets a state with `State.set`; it is shown here and can be read from outside."
          : "The run has set no state."}
      </Empty>
    );
  const changed = latest(live.fresh);
  return (
    <div className="scroll grow">
      <table className="grid">
        <thead>
          <tr>
            <th>Name</th>
            <th>Value</th>
            <th className="num">Set by event</th>
            <th>Changed</th>
          </tr>
        </thead>
        <tbody>
          {states.data.items.map((state) => {
            const event = changed.get(state.name);
            const text = JSON.stringify(state.value) ?? "";
            return (
              <tr key={state.name}>
                <td className="mono strong">{state.name}</td>
                <td className="mono state-value">
                  {text.length > BRIEF ? (
                    <details>
                      <summary>{brief(state.value, BRIEF)}</summary>
                      <Payload value={state.value} />
                    </details>
                  ) : (
                    brief(text, BRIEF)
                  )}
                </td>
                <td className="num muted">{event ? count(event.seq) : "–"}</td>
                <td className="muted">{event ? <Time at={event.at} /> : "before this page was opened"}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {states.data.next && <p className="faint small pad">The first {count(states.data.items.length)} are shown.</p>}
    </div>
  );
}

function latest(events: HistoryEvent[]): Map<string, HistoryEvent> {
  const found = events.filter((e) => e.type === "StateSet");
  return new Map(found.map((e) => [String((e.data as { name?: unknown }).name), e]));
}
