/** What a graph of tasks is made of. Sizes follow from names and kinds alone, so that a live run never moves its nodes. */
import type { StatusWord } from "../parts/icons";

export type NodeKind =
  | "task"
  | "fanout"
  | "timer"
  | "child"
  | "approval"
  | "signal"
  | "promise"
  | "choice"
  /** A body within the graph: the nodes whose `parent` it is are drawn inside. */
  | "group";

export interface Durations {
  bars: number[];
  max_s: number;
  p50_s: number;
  p95_s: number;
}

export interface FlowNode {
  id: string;
  kind: NodeKind;
  /** What is written on it; the id unless given. */
  name?: string;
  /** A second line, small: how long it took, the name of a task, a badge. */
  sub?: string;
  status?: StatusWord | null;
  /** Tasks by status, of a fan-out in a run. */
  counts?: Partial<Record<StatusWord, number>>;
  tasks?: number;
  durations?: Durations | null;
  changed?: boolean;
  parent?: string;
  /** A run fills in the second line as it goes: room is kept for it. */
  live?: boolean;
  /** Characters of the second line for which a live node keeps room beyond the usual. */
  room?: number;
}

export interface FlowEdge {
  from: string;
  to: string;
  label?: string;
  /** It was taken. */
  done?: boolean;
  /** It may not be taken. */
  maybe?: boolean;
}

export interface Size {
  w: number;
  h: number;
}

export interface Box extends Size {
  x: number;
  y: number;
}

export interface Point {
  x: number;
  y: number;
}

export interface Layout {
  width: number;
  height: number;
  boxes: Map<string, Box>;
  /** By the place of an edge in the list. */
  routes: Map<number, { points: Point[]; label: Point | null }>;
}

const MONO_PX = 7.25;
const SMALL_PX = 5.9;
const NAME_CHARS_MAX = 30;
const SUB_CHARS_MAX = 34;
const LIVE_SUB_CHARS = 20;
const DIAMOND: Size = { w: 60, h: 46 };
const FANOUT: Size = { w: 446, h: 108 };
const STACK = 8;

export function clip(text: string, chars: number): string {
  return text.length > chars ? `${text.slice(0, chars - 1)}…` : text;
}

export const shownName = (node: FlowNode): string => clip(node.name ?? node.id, NAME_CHARS_MAX);
export const shownSub = (node: FlowNode): string => clip(node.sub ?? "", SUB_CHARS_MAX);

/** Of a node as it is drawn. */
export function sizeOf(node: FlowNode): Size {
  if (node.kind === "choice") return DIAMOND;
  if (node.kind === "fanout" && node.live) {
    const name = shownName(node).length * 7.9;
    return { w: Math.max(FANOUT.w, 92 + name + 150), h: FANOUT.h };
  }
  const hasSub = node.live || !!node.sub;
  const lead = node.kind === "approval" ? 41 : 33;
  const tail = node.kind === "approval" || node.kind === "timer" ? 20 : 14;
  const sub = node.live ? Math.min(Math.max(LIVE_SUB_CHARS, node.room ?? 0), SUB_CHARS_MAX) : shownSub(node).length;
  const text = Math.max(shownName(node).length * MONO_PX, hasSub ? sub * SMALL_PX : 0);
  return { w: Math.max(140, Math.ceil(lead + text + tail)), h: hasSub ? 42 : 36 };
}

/** With what is drawn beside and behind it. */
export function roomOf(node: FlowNode): Size {
  const { w, h } = sizeOf(node);
  if (node.kind === "choice") return { w: w + 2 * (8 + Math.ceil(shownName(node).length * MONO_PX)), h };
  if (node.kind === "fanout") return { w: w + STACK, h: h + STACK };
  if (node.kind === "child") return { w: w + 4, h: h + 4 };
  return { w, h };
}

/** Two graphs with the same key have the same layout. */
export function layoutKey(nodes: FlowNode[], edges: FlowEdge[]): string {
  const parts = nodes.map((n) => {
    const { w, h } = roomOf(n);
    return [n.id, n.kind, w, h, n.parent ?? ""];
  });
  return JSON.stringify([parts, edges.map((e) => [e.from, e.to, e.label ?? ""])]);
}

/** The node to which an arrow key leads: the nearest one in that direction. */
export function neighbour(boxes: Map<string, Box>, from: string, key: string): string | null {
  const at = boxes.get(from);
  const direction = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[key];
  if (!at || !direction) return null;
  const [dx, dy] = direction as [number, number];
  let best: string | null = null;
  let least = Number.POSITIVE_INFINITY;
  for (const [id, box] of boxes) {
    if (id === from) continue;
    const x = box.x + box.w / 2 - (at.x + at.w / 2);
    const y = box.y + box.h / 2 - (at.y + at.h / 2);
    const along = x * dx + y * dy;
    const aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (along <= 8) continue;
    const cost = along + aside * 2;
    if (cost < least) [best, least] = [id, cost];
  }
  return best;
}

/** A smooth way through points: each part leaves and arrives vertically, as edges between ranks do. */
export function curve(points: Point[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let d = `M${round(first.x)} ${round(first.y)}`;
  let before = first;
  for (const point of rest) {
    if (Math.abs(point.x - before.x) < 0.5) d += ` V${round(point.y)}`;
    else {
      const bend = (point.y - before.y) / 2;
      d += ` C${round(before.x)} ${round(before.y + bend)} ${round(point.x)} ${round(point.y - bend)} ${round(point.x)} ${round(point.y)}`;
    }
    before = point;
  }
  return d;
}

function round(n: number): number {
  return Math.round(n * 10) / 10;
}

const DONE: StatusWord[] = ["success", "failed", "skipped", "cancelled"];

/** The parts of a fan-out's ring: where each begins and how long it is, as parts of 1. */
export function ring(
  counts: Partial<Record<StatusWord, number>>,
  total: number,
): { status: StatusWord; from: number; length: number }[] {
  let from = 0;
  const out: { status: StatusWord; from: number; length: number }[] = [];
  for (const status of [...DONE, "running", "dispatched"] as StatusWord[]) {
    const n = counts[status] ?? 0;
    if (n === 0 || total === 0) continue;
    const length = Math.min(Math.max(n / total, 0.015), 1 - from);
    out.push({ status, from, length });
    from += length;
  }
  return out;
}

export function doneOf(counts: Partial<Record<StatusWord, number>>): number {
  return DONE.reduce((sum, status) => sum + (counts[status] ?? 0), 0);
}
