/** Places for nodes, computed by ELK in a worker that is loaded when the first graph is drawn, once for each shape of graph. */
import type { ELK, ElkExtendedEdge, ElkNode } from "elkjs/lib/elk-api";
import { type Box, type FlowEdge, type FlowNode, type Layout, layoutKey, type Point, roomOf, sizeOf } from "./model";

/** Layouts that are kept: the versions that a person looks at in one sitting. */
const KEPT = 40;
const MARGIN = 12;
const kept = new Map<string, Promise<Layout>>();
let engine: Promise<ELK> | null = null;

const OPTIONS: Record<string, string> = {
  "elk.algorithm": "layered",
  "elk.direction": "DOWN",
  "elk.edgeRouting": "POLYLINE",
  "elk.hierarchyHandling": "INCLUDE_CHILDREN",
  "elk.json.shapeCoords": "ROOT",
  "elk.json.edgeCoords": "ROOT",
  "elk.spacing.nodeNode": "18",
  "elk.spacing.edgeNode": "14",
  "elk.spacing.componentComponent": "28",
  "elk.layered.spacing.nodeNodeBetweenLayers": "20",
  "elk.layered.spacing.edgeNodeBetweenLayers": "7",
  "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
  "elk.layered.nodePlacement.strategy": "BRANDES_KOEPF",
  "elk.layered.nodePlacement.bk.fixedAlignment": "BALANCED",
  "elk.padding": `[top=${MARGIN},left=${MARGIN},bottom=${MARGIN},right=${MARGIN}]`,
};

/** The layout of a graph; the same promise for the same shape. */
export function layout(nodes: FlowNode[], edges: FlowEdge[]): Promise<Layout> {
  const key = layoutKey(nodes, edges);
  const found = kept.get(key);
  if (found) return found;
  const made = compute(nodes, edges);
  kept.set(key, made);
  made.catch(() => kept.delete(key));
  if (kept.size > KEPT) kept.delete(kept.keys().next().value as string);
  return made;
}

async function compute(nodes: FlowNode[], edges: FlowEdge[]): Promise<Layout> {
  if (nodes.length === 0) return { width: 0, height: 0, boxes: new Map(), routes: new Map() };
  engine ??= load();
  engine.catch(() => {
    engine = null;
  });
  const elk = await engine;
  return fromElk(await elk.layout(toElk(nodes, edges)), nodes, edges);
}

async function load(): Promise<ELK> {
  const [{ default: Elk }, { default: workerUrl }] = await Promise.all([
    import("elkjs/lib/elk-api"),
    import("elkjs/lib/elk-worker.min.js?url"),
  ]);
  return new Elk({ workerUrl, algorithms: ["layered"] });
}

export function toElk(nodes: FlowNode[], edges: FlowEdge[]): ElkNode {
  const ids = new Set(nodes.map((n) => n.id));
  const children = (parent: string | undefined): ElkNode[] =>
    nodes.filter((n) => n.parent === parent).map((n) => elkNode(n, children(n.id)));
  return {
    id: "graph:root",
    layoutOptions: OPTIONS,
    children: children(undefined),
    edges: edges.flatMap((e, n) => (ids.has(e.from) && ids.has(e.to) ? [elkEdge(e, n)] : [])),
  };
}

function elkNode(node: FlowNode, children: ElkNode[]): ElkNode {
  if (node.kind === "group")
    return { id: node.id, children, layoutOptions: { "elk.padding": "[top=34,left=14,bottom=14,right=14]" } };
  const { w, h } = roomOf(node);
  return { id: node.id, width: w, height: h };
}

function elkEdge(edge: FlowEdge, n: number): ElkExtendedEdge {
  const labels = edge.label
    ? [{ text: edge.label, width: Math.min(edge.label.length, 40) * 5.9 + 8, height: 14 }]
    : undefined;
  return { id: `edge:${n}`, sources: [edge.from], targets: [edge.to], labels };
}

export function fromElk(root: ElkNode, nodes: FlowNode[], edges: FlowEdge[]): Layout {
  const kinds = new Map(nodes.map((n) => [n.id, n]));
  const boxes = new Map<string, Box>();
  const visit = (node: ElkNode): void => {
    const known = kinds.get(node.id);
    if (known) boxes.set(node.id, boxOf(node, known));
    for (const child of node.children ?? []) visit(child);
  };
  visit(root);
  const routes: Layout["routes"] = new Map();
  const collect = (node: ElkNode): void => {
    for (const edge of node.edges ?? []) {
      const n = Number(edge.id.slice("edge:".length));
      const given = edges[n];
      if (given) routes.set(n, { points: pointsOf(edge, boxes, given), label: labelOf(edge) });
    }
    for (const child of node.children ?? []) collect(child);
  };
  collect(root);
  return { width: root.width ?? 0, height: root.height ?? 0, boxes, routes };
}

function boxOf(found: ElkNode, node: FlowNode): Box {
  const { x = 0, y = 0, width = 0, height = 0 } = found;
  if (node.kind === "group") return { x, y, w: width, h: height };
  const { w, h } = sizeOf(node);
  return { x: node.kind === "choice" ? x + (width - w) / 2 : x, y, w, h };
}

function labelOf(edge: ElkExtendedEdge): Point | null {
  const label = edge.labels?.[0];
  return label?.x === undefined ? null : { x: label.x + (label.width ?? 0) / 2, y: (label.y ?? 0) + 11 };
}

/** Ends are moved to the middle of the sides that they touch. */
function pointsOf(edge: ElkExtendedEdge, boxes: Map<string, Box>, given: FlowEdge): Point[] {
  const section = edge.sections?.[0];
  if (!section) return [];
  const points = [section.startPoint, ...(section.bendPoints ?? []), section.endPoint].map(({ x, y }) => ({ x, y }));
  const from = boxes.get(given.from);
  const to = boxes.get(given.to);
  const [first, last] = [points[0] as Point, points.at(-1) as Point];
  if (from) points[0] = middle(from, first);
  if (to) points[points.length - 1] = middle(to, last);
  return points;
}

function middle(box: Box, touched: Point): Point {
  const top = Math.abs(touched.y - box.y) <= Math.abs(touched.y - box.y - box.h);
  return { x: box.x + box.w / 2, y: top ? box.y : box.y + box.h };
}
