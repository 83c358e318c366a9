/** What a workflow is: the text of a flow, or what is known about code. */
import { Link } from "@tanstack/react-router";
import { lazy, Suspense } from "react";
import { useSession } from "../api/session";
import { shortVersion } from "../format/ids";
import { Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { useGo, useUrl } from "../shell/url";
import { CodeDefinition } from "./CodeDefinition";
import { textOf, useDefinition, type Workflow, workflowHref } from "./data";
import { GraphPane, useGraph } from "./editor/DraftGraph";
import { FlowEditor } from "./editor/FlowEditor";

const YamlEditor = lazy(() => import("./editor/YamlEditor").then((module) => ({ default: module.YamlEditor })));
const NO_MARKS = { problems: [], added: new Set<number>() };

export function Definition({ workflow }: { workflow: Workflow }) {
  const url = useUrl();
  const go = useGo();
  const { may } = useSession();
  const version = url.get("version") ?? workflow.version;
  const definition = useDefinition(workflow.name, version);
  if (definition.error && !definition.data)
    return <Failed error={definition.error} retry={() => void definition.refetch()} />;
  if (!definition.data) return <Skeleton rows={14} height={24} />;
  if (definition.data.kind === "code") return <CodeDefinition workflow={workflow} version={definition.data} />;
  if (version !== workflow.version || !may("develop"))
    return <FlowText workflow={workflow} version={version} text={textOf(definition.data)} />;
  return (
    <FlowEditor
      key={workflow.name}
      name={workflow.name}
      version={version}
      published={textOf(definition.data)}
      onPublished={(name) => name !== workflow.name && go(workflowHref(name))}
    />
  );
}

/** A version that is read and not changed. */
function FlowText({ workflow, version, text }: { workflow: Workflow; version: string; text: string }) {
  const graph = useGraph(workflow.name, version);
  const known = workflow.versions.find((v) => v.version === version);
  return (
    <section className="pane edit" role="tabpanel" id="panel-definition" aria-label="Definition">
      <div className="edit-main">
        <Suspense fallback={<Skeleton rows={14} height={22} />}>
          <YamlEditor
            text={text}
            onChange={() => undefined}
            readOnly
            schema={null}
            marks={NO_MARKS}
            label="Definition in YAML, read only"
          />
        </Suspense>
        {graph.data ? (
          <GraphPane graph={graph.data} />
        ) : graph.error ? (
          <Failed error={graph.error} retry={() => void graph.refetch()} />
        ) : (
          <Skeleton rows={6} height={60} />
        )}
      </div>
      <footer className="edit-foot">
        <span className="muted clip grow">
          Version <span className="mono">{shortVersion(version)}</span>
          {known && (
            <>
              {" "}
              of <Time at={known.registered_at} />
            </>
          )}
          {version === workflow.version ? ", current. Read only." : ", not current. Read only."}
        </span>
        {version !== workflow.version && (
          <Link className="btn" to={workflowHref(workflow.name, { tab: "definition" }) as never}>
            Show the current one
          </Link>
        )}
      </footer>
    </section>
  );
}
