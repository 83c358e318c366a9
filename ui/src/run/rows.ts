/** Rows of the timeline: nodes, the tasks of those that are open, and what is left out. */
import type { OpenTasks } from "./data";
import { nodeOf, type Selection } from "./selection";
import type { RunTask, Segment, TimelineNode } from "./types";

export type Row =
  | { type: "node"; key: string; node: TimelineNode; open: boolean }
  | { type: "task"; key: string; node: TimelineNode; task: RunTask }
  | { type: "more"; key: string; node: TimelineNode; tasks: OpenTasks };

export const ROW_PX = 26;
export const FAN_PX = 58;
export const MORE_PX = 28;

export function heightOf(row: Row): number {
  if (row.type === "more") return MORE_PX;
  return row.type === "node" && isFan(row.node) ? FAN_PX : ROW_PX;
}

export function isFan(node: TimelineNode): boolean {
  return node.kind === "fanout" || (node.tasks > 1 && node.bins !== null);
}

export function rowsOf(nodes: TimelineNode[], open: OpenTasks[]): Row[] {
  const opened = new Map(open.map((o) => [o.open.node, o]));
  return nodes.flatMap((node): Row[] => {
    const tasks = isFan(node) ? opened.get(node.node) : undefined;
    const head: Row = { type: "node", key: node.node, node, open: tasks !== undefined };
    if (!tasks) return [head];
    const kids = tasks.items.map((task): Row => ({ type: "task", key: `${node.node}#${task.seq}`, node, task }));
    return [head, ...kids, { type: "more", key: `${node.node}:more`, node, tasks }];
  });
}

export function selectionOf(row: Row): Selection | null {
  if (row.type === "node") return { node: row.node.node, seq: null };
  return row.type === "task" ? { node: row.node.node, seq: row.task.seq } : null;
}

export function isSelected(row: Row, selection: Selection | null): boolean {
  if (!selection || row.node.node !== selection.node || row.type === "more") return false;
  if (row.type === "task") return row.task.seq === selection.seq;
  return selection.seq === null || (row.node.seq !== null && row.node.seq === selection.seq);
}

/** The row to go to from the selected one; -1 when there is none. */
export function stepFrom(rows: Row[], selection: Selection | null, step: 1 | -1): number {
  const at = rows.findIndex((r) => isSelected(r, selection));
  const from = at < 0 ? (step > 0 ? -1 : rows.length) : at;
  for (let n = from + step; n >= 0 && n < rows.length; n += step) if (rows[n]?.type !== "more") return n;
  return at;
}

/** The next row that failed, from the top again after the last. A fan-out that is open is its tasks. */
export function nextFailed(rows: Row[], selection: Selection | null): number {
  const at = rows.findIndex((r) => isSelected(r, selection));
  const failed = (row: Row) =>
    row.type === "task"
      ? row.task.status === "failed"
      : row.type === "node" && !row.open && (row.node.status === "failed" || Boolean(row.node.counts?.failed));
  for (let n = 1; n <= rows.length; n += 1) {
    const k = (Math.max(at, -1) + n) % rows.length;
    if (failed(rows[k] as Row)) return k;
  }
  return -1;
}

export function segmentsOf(row: Row): Segment[] {
  if (row.type === "task") return row.task.segments ?? [];
  return row.type === "node" ? row.node.segments : [];
}

/** Of which node of the timeline a task is. */
export function nodeOfTask(
  nodes: TimelineNode[],
  task: { name?: string | null; node?: string | null },
): TimelineNode | null {
  const name = nodeOf(task);
  return nodes.find((n) => n.node === name) ?? null;
}
