/** The run as a graph: of a flow, as it was written; of code, the steps that it took. */
import { useMemo } from "react";
import { duration } from "../format/durations";
import { clock, ms } from "../format/times";
import { FlowGraph } from "../graph/FlowGraph";
import { fromFlow, type GivenGraph } from "../graph/fromFlow";
import { GraphTable, type TableNode } from "../graph/GraphTable";
import type { FlowEdge } from "../graph/model";
import { Icon, type StatusWord } from "../parts/icons";
import { Status } from "../parts/Status";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Segments } from "../parts/Tabs";
import { useUrl } from "../shell/url";
import { lastWork } from "./boxes";
import { useRunView } from "./context";
import { useRunGraph } from "./data";
import type { TimelineNode } from "./types";

const KEY: StatusWord[] = ["success", "running", "failed", "pending", "skipped"];

export function GraphTab() {
  const view = useRunView();
  const url = useUrl();
  const graph = useRunGraph(view.name, true);
  const nodes = view.timeline?.nodes;
  const drawn = useMemo(() => (nodes ? drawing(nodes, graph.data ?? null) : null), [nodes, graph.data]);
  const asTable = url.get("as") === "table";
  if (view.timelineError && !nodes) return <Failed error={view.timelineError} retry={view.retryTimeline} />;
  if (!drawn || graph.isPending) return <Skeleton rows={6} height={60} />;
  if (drawn.nodes.length === 0)
    return <Empty title="Nothing to draw yet">The graph grows as the run's code schedules tasks.</Empty>;
  const select = (id: string) => view.select({ node: id, seq: null });
  const words = KEY.filter((s) => drawn.nodes.some((n) => n.status === s));
  return (
    <>
      <div className="tl-bar">
        <div className="tl-key">
          {words.map((s) => (
            <Status key={s} status={s} />
          ))}
        </div>
        <span className="grow" />
        <Segments
          label="Graph or table"
          value={asTable ? "table" : "graph"}
          onChange={(id) => url.set({ as: id === "table" ? "table" : null })}
          options={[
            {
              id: "graph",
              label: (
                <>
                  <Icon name="flow" size={12} />
                  Graph
                </>
              ),
            },
            {
              id: "table",
              label: (
                <>
                  <Icon name="table" size={12} />
                  Table
                </>
              ),
            },
          ]}
        />
      </div>
      {asTable ? (
        <GraphTable nodes={drawn.nodes} edges={drawn.edges} selected={view.selection?.node} onSelect={select} />
      ) : (
        <FlowGraph
          nodes={drawn.nodes}
          edges={drawn.edges}
          selected={view.selection?.node}
          onSelect={select}
          label={`Graph of ${view.run.workflow}`}
        />
      )}
    </>
  );
}

/** What the flow says, filled with what the timeline knows; of code the timeline alone. */
export function drawing(nodes: TimelineNode[], graph: GivenGraph | null): { nodes: TableNode[]; edges: FlowEdge[] } {
  const known = new Map(nodes.map((n) => [n.node, n]));
  if (!graph) {
    const found = nodes.map((n) => filled({ id: n.node, kind: n.kind, live: true }, n));
    const edges = nodes.flatMap((n) =>
      n.after
        .filter((a) => known.has(a))
        .map((a) => ({ from: a, to: n.node, done: isDone(known.get(a)) && hasBegun(n) })),
    );
    return { nodes: found, edges };
  }
  const flow = fromFlow(graph);
  const statuses = statusesOf(graph);
  const found = flow.nodes.map((n) => {
    const lane = known.get(n.id);
    const base: TableNode = {
      ...n,
      sub: n.kind === "task" ? undefined : n.sub,
      room: n.kind === "task" ? 0 : n.sub?.length,
      live: n.kind !== "choice" && n.kind !== "group",
      status: statuses.get(n.id) ?? null,
    };
    return lane ? filled(base, lane) : base;
  });
  const byId = new Map(found.map((n) => [n.id, n]));
  const edges = flow.edges.map((e) => ({
    ...e,
    done: ended(byId.get(e.from)) && begun(byId.get(e.to)),
    maybe: e.maybe && !begun(byId.get(e.to)),
  }));
  return { nodes: found, edges };
}

const ended = (n: TableNode | undefined) => n?.status === "success" || n?.status === "failed";
const begun = (n: TableNode | undefined) => !!n?.status && n.status !== "pending" && n.status !== "skipped";
const isDone = (n: TimelineNode | undefined) => n?.status === "success" || n?.status === "failed";
const hasBegun = (n: TimelineNode) => n.status !== "pending" && n.status !== "skipped";

function statusesOf(graph: GivenGraph): Map<string, StatusWord> {
  const out = new Map<string, StatusWord>();
  const visit = (body: GivenGraph): void => {
    for (const n of body.nodes) {
      if (n.status) out.set(n.path, (n.status === "waiting" ? "running" : n.status) as StatusWord);
      if (n.inner) visit(n.inner);
    }
  };
  visit(graph);
  return out;
}

function filled(node: TableNode, lane: TimelineNode): TableNode {
  const took = tookOf(lane);
  const fan = node.kind === "fanout" || lane.kind === "fanout";
  return {
    ...node,
    kind: fan ? "fanout" : node.kind,
    status: lane.status,
    counts: lane.counts,
    tasks: lane.tasks,
    durations: lane.durations,
    took_s: took,
    sub: fan ? concurrency(node.sub) : (subOf(lane, took) ?? node.sub),
  };
}

/** Of the badges of a fan-out a run shows only its concurrency. */
function concurrency(sub: string | undefined): string | undefined {
  return sub?.split(", ").find((part) => part.endsWith(" at a time"));
}

function tookOf(lane: TimelineNode): number | null {
  if (lane.started_at && lane.finished_at && lane.tasks > 1) return (ms(lane.finished_at) - ms(lane.started_at)) / 1000;
  return lane.finished_at ? lastWork(lane.segments, null) : null;
}

function subOf(lane: TimelineNode, took: number | null): string | undefined {
  if (lane.status === "pending" || took === null) return undefined;
  if (lane.kind === "timer" && lane.finished_at) return `fired ${clock(lane.finished_at)}`;
  return [lane.attempts > 1 ? `${lane.attempts} attempts` : "", duration(took)].filter(Boolean).join(", ");
}
