import { Charts } from "./Charts";
import { useFreshRuns } from "./data";
import { Errors } from "./Errors";
import { RunsGrid } from "./RunsGrid";
import { Versions } from "./Versions";

/** How a workflow does: charts, the last runs by task, versions, errors. One that fails leaves the others. */
export function Overview({ name }: { name: string }) {
  useFreshRuns(name);
  return (
    <section className="pane scroll overview" role="tabpanel" id="panel-overview" aria-labelledby="tab-overview">
      <Charts name={name} />
      <div className="two">
        <RunsGrid name={name} />
        <Versions name={name} />
      </div>
      <Errors name={name} />
    </section>
  );
}
