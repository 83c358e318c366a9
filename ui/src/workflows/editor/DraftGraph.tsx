/** The graph of a flow's text, with what the draft changes tinted; as a table for those who would rather read. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";
import { api, body, type Schemas } from "../../api/client";
import { FlowGraph } from "../../graph/FlowGraph";
import { fromFlow } from "../../graph/fromFlow";
import { GraphTable } from "../../graph/GraphTable";
import type { FlowNode } from "../../graph/model";
import { Empty, Failed, Skeleton } from "../../parts/states";
import { Segments } from "../../parts/Tabs";
import { useUrl } from "../../shell/url";
import type { ValidFlow } from "./validation";

type Graph = Schemas["FlowGraph"];

export function useGraph(name: string | null, version: string) {
  return useQuery({
    queryKey: ["graph", name, version],
    queryFn: ({ signal }) =>
      body(
        api.GET("/api/v1/workflows/{name}/graph", {
          params: { path: { name: name as string }, query: { version: version || undefined } },
          signal,
        }),
      ) as Promise<Graph>,
    enabled: Boolean(name),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** `flow` is what the draft would become; while it has problems, the last graph that could be drawn stays. */
export function DraftGraph(props: {
  name: string | null;
  version: string;
  flow: ValidFlow | null;
  isValid: boolean;
  onSelect: (path: string) => void;
}) {
  const published = useGraph(props.name, props.version);
  const last = useRef<{ graph: Graph; changed: Set<string> } | null>(null);
  const { flow } = props;
  const drawn = useMemo(() => {
    if (flow?.graph)
      last.current = {
        graph: flow.graph,
        changed: new Set([...(flow.changes?.added ?? []), ...(flow.changes?.changed ?? [])]),
      };
    return last.current ?? (published.data ? { graph: published.data, changed: new Set<string>() } : null);
  }, [flow, published.data]);
  if (!drawn && published.error) return <Failed error={published.error} retry={() => void published.refetch()} />;
  if (!drawn)
    return (
      <div className="edit-graph">
        {props.isValid ? (
          <Skeleton rows={6} height={60} />
        ) : (
          <Empty title="Nothing to draw yet">The draft has problems.</Empty>
        )}
      </div>
    );
  return <GraphPane {...drawn} stale={!props.isValid} onSelect={props.onSelect} />;
}

export function GraphPane(props: {
  graph: Graph;
  changed?: Set<string>;
  stale?: boolean;
  onSelect?: (path: string) => void;
}) {
  const url = useUrl();
  const { nodes, edges } = useMemo(() => fromFlow(props.graph), [props.graph]);
  const tinted = useMemo(() => tint(nodes, props.changed ?? new Set()), [nodes, props.changed]);
  const asTable = url.get("as") === "table";
  const selected = url.get("node");
  const select = (path: string) => {
    url.set({ node: path });
    props.onSelect?.(path);
  };
  return (
    <div className={`edit-graph ${props.stale ? "is-stale" : ""}`}>
      {asTable ? (
        <GraphTable nodes={tinted} edges={edges} selected={selected} onSelect={select} />
      ) : (
        <FlowGraph nodes={tinted} edges={edges} selected={selected} onSelect={select} label="Graph of the draft" />
      )}
      {props.stale && <span className="tag graph-stale">As it was before the problem</span>}
      <div className="graph-as">
        <Segments
          label="Show the graph as"
          options={[
            { id: "graph", label: "Graph" },
            { id: "table", label: "Table" },
          ]}
          value={asTable ? "table" : "graph"}
          onChange={(id) => url.set({ as: id === "table" ? id : null })}
        />
      </div>
    </div>
  );
}

/** A node is changed when the part of the document that it stands in is. */
function tint(nodes: FlowNode[], changed: Set<string>): FlowNode[] {
  if (changed.size === 0) return nodes;
  return nodes.map((node) => (changed.has(node.id.split(".")[0] as string) ? { ...node, changed: true } : node));
}
