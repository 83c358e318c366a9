/** Drafts of flows, kept in the tab until they are published or discarded. */
import { useCallback, useSyncExternalStore } from "react";

export interface Draft {
  text: string;
  /** The version that was current when the draft began; "" for a new flow. */
  base: string;
}

const PREFIX = "perdure.draft:";
const watchers = new Set<() => void>();
const kept = new Map<string, Draft | null>();

function read(key: string): Draft | null {
  const known = kept.get(key);
  if (known !== undefined) return known;
  let found: Draft | null = null;
  try {
    const value = JSON.parse(sessionStorage.getItem(PREFIX + key) ?? "null") as Draft | null;
    if (value && typeof value.text === "string" && typeof value.base === "string") found = value;
  } catch {
    // Storage may be off, or hold something else; the draft then lives as long as the page.
  }
  kept.set(key, found);
  return found;
}

function write(key: string, draft: Draft | null): void {
  kept.set(key, draft);
  try {
    if (draft) sessionStorage.setItem(PREFIX + key, JSON.stringify(draft));
    else sessionStorage.removeItem(PREFIX + key);
  } catch {
    // As above: full or off.
  }
  for (const watcher of watchers) watcher();
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** The draft of a workflow in a namespace, and how to change it; null discards it. */
export function useDraft(namespace: string, name: string): [Draft | null, (draft: Draft | null) => void] {
  const key = `${namespace}/${name}`;
  const draft = useSyncExternalStore(watch, () => read(key));
  const set = useCallback((next: Draft | null) => write(key, next), [key]);
  return [draft, set];
}
