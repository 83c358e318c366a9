/** What is selected: a node, or one task of it. In the address as `task=process` or `task=process#417`; 417 is the task's number. */

export interface Selection {
  node: string;
  seq: number | null;
}

export function readSelection(text: string | null): Selection | null {
  if (!text) return null;
  const match = /^(.+)#(\d{1,10})$/s.exec(text);
  return match ? { node: match[1] as string, seq: Number(match[2]) } : { node: text, seq: null };
}

export function writeSelection(selection: Selection): string {
  return selection.seq === null ? selection.node : `${selection.node}#${selection.seq}`;
}

export function sameSelection(a: Selection | null, b: Selection | null): boolean {
  return a?.node === b?.node && a?.seq === b?.seq;
}

/** The node of a task: without its place in a fan-out. */
export function nodeOf(task: { name?: string | null; node?: string | null }): string {
  return task.node ? task.node.replace(/\[\d+\]/g, "") : (task.name ?? "");
}

/** What a task is called: its node with its place, or its name with its number where a run has several. */
export function labelOf(task: { name: string; node?: string | null; seq: number }, alone = false): string {
  return task.node || (alone ? task.name : `${task.name} #${task.seq}`);
}

interface Selectable {
  node: string;
  status: string;
  tasks: number;
  counts?: { failed?: number };
}

/** Before a person has chosen: what failed, else what is at work, else what comes next, else the end. */
export function firstLook<T extends Selectable>(nodes: T[]): T | undefined {
  const failed = nodes.find((n) => n.status === "failed" || n.counts?.failed);
  if (failed) return failed;
  for (const status of ["running", "dispatched", "pending"]) {
    const found = nodes.find((n) => n.status === status);
    if (found) return found;
  }
  return nodes.at(-1);
}
