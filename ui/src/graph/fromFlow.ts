/** The graph of a flow, as the API describes it, as nodes and edges to draw. */
import type { FlowEdge, FlowNode, NodeKind } from "./model";

/** What is needed of the API's graph; a run's and a definition's have it alike. */
export interface GivenNode {
  key: string;
  path: string;
  word: string;
  detail: string;
  badges: string[];
  status?: string | null;
  inner?: GivenGraph | null;
}

export interface GivenGraph {
  nodes: GivenNode[];
  links: { source: string; target: string; label: string }[];
}

const KINDS: Record<string, NodeKind> = {
  sleep: "timer",
  flow: "child",
  approval: "approval",
  wait: "signal",
  event: "promise",
  choice: "choice",
};

export function kindOf(node: GivenNode): NodeKind {
  if (node.inner && node.inner.nodes.length > 0) return "group";
  if (node.badges.some((b) => b.startsWith("for each") || b.startsWith("× "))) return "fanout";
  return KINDS[node.word] ?? "task";
}

/** Nodes by their paths. Ways from or to a body lead to the box around it. */
export function fromFlow(graph: GivenGraph): { nodes: FlowNode[]; edges: FlowEdge[] } {
  const nodes: FlowNode[] = [];
  const edges: FlowEdge[] = [];
  unfold(graph, undefined, nodes, edges);
  return { nodes, edges };
}

function unfold(body: GivenGraph, parent: string | undefined, nodes: FlowNode[], edges: FlowEdge[]): void {
  const paths = new Map(body.nodes.map((n) => [n.key, n.path]));
  const choices = new Set(body.nodes.filter((n) => n.word === "choice").map((n) => n.key));
  for (const node of body.nodes) {
    nodes.push({ id: node.path, name: node.key, kind: kindOf(node), sub: subOf(node), parent });
    if (node.inner) unfold(node.inner, node.path, nodes, edges);
  }
  for (const link of body.links) {
    const [from, to] = [paths.get(link.source), paths.get(link.target)];
    if (from && to)
      edges.push({ from, to, label: link.label || undefined, maybe: choices.has(link.source) || !!link.label });
  }
}

function subOf(node: GivenNode): string | undefined {
  const word = node.word === "task" || node.word === "tasks" || node.word === "choice" ? "" : node.word;
  const told = [[word, node.detail].filter(Boolean).join(" "), ...node.badges].filter(Boolean);
  return told.join(", ") || undefined;
}
