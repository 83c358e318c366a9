/** The sentence of what a run waits for, in parts, with links to those that hold it up. The words are the engine's own. */
import type { Schemas } from "../api/client";
import { plural } from "../format/numbers";
import type { IconName } from "../parts/icons";

type Waits = Schemas["RunWaits"];
type Wait = Schemas["RunWait"];
export type WaitPart = { text: string; href?: string; mono?: boolean };

const ICONS: Record<string, IconName> = {
  limit: "limit",
  rate: "limit",
  approval: "person",
  child: "flow",
  timer: "clock",
  signal: "signal",
  event: "signal",
  paused: "pause",
  stuck: "warn",
  retry: "retry",
};

export function waitIcon(on: string): IconName {
  return ICONS[on] ?? "wait";
}

export function approvalHref(runId: string, name: string): string {
  return `/approvals?item=${encodeURIComponent(`${runId}/${name}`)}`;
}

/** Where a wait is looked into. */
export function hrefOf(wait: Wait, runId: string): string | null {
  if (wait.on === "approval") return approvalHref(runId, wait.name ?? "");
  if (wait.on === "limit" || wait.on === "rate")
    return `/limits${wait.key ? `?q=${encodeURIComponent(wait.key)}` : ""}`;
  if (wait.on === "no_worker" || wait.on === "slot" || wait.on === "version" || wait.on === "no_worker_for_version")
    return "/workers";
  return null;
}

/** The sentence cut at what can be opened: ids of runs, names of limits and approvals. */
export function parts(waiting: Waits, runId: string): WaitPart[] {
  let out: WaitPart[] = [{ text: waiting.reason.replace(/, \.\.\.$/, " and others") }];
  for (const wait of waiting.waits) {
    for (const id of wait.runs ?? [])
      out = id === runId ? renamed(out, id) : linked(out, id, `/runs/${encodeURIComponent(id)}`);
    const href = hrefOf(wait, runId);
    const name = wait.key || wait.name;
    if (href && name) out = linked(out, name, href);
  }
  return out;
}

function linked(before: WaitPart[], found: string, href: string): WaitPart[] {
  let done = false;
  return before.flatMap((part) => {
    const at = done || part.href ? -1 : part.text.indexOf(found);
    if (at < 0) return [part];
    done = true;
    const rest = [
      { text: part.text.slice(0, at) },
      { text: found, href, mono: true },
      { text: part.text.slice(at + found.length) },
    ];
    return rest.filter((p) => p.text);
  });
}

function renamed(before: WaitPart[], id: string): WaitPart[] {
  return before.map((part) => (part.href ? part : { ...part, text: part.text.replace(id, "this run") }));
}

/** Runs that hold what is waited for and that the sentence does not name. */
export function unnamed(waiting: Waits): string[] {
  const ids = waiting.waits.flatMap((w) => w.runs ?? []);
  return [...new Set(ids)].filter((id) => !waiting.reason.includes(id)).slice(0, 5);
}

/** Words after the sentence: how many tasks are held up, where that is what a limit or a worker does. */
export function queuedWords(waiting: Waits, pending: number): string {
  return ["limit", "rate", "slot", "no_worker", "paused"].includes(waiting.on) && pending > 0
    ? ` ${plural(pending, "task is", "tasks are")} queued.`
    : "";
}
