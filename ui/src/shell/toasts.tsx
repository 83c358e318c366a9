import { useSyncExternalStore } from "react";

const SHOWN_MS = 3200;
let current: { text: string; id: number } | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
const watchers = new Set<() => void>();

/** One sentence about what just happened. */
export function toast(text: string): void {
  current = { text, id: Date.now() };
  clearTimeout(timer);
  timer = setTimeout(() => {
    current = null;
    for (const watcher of watchers) watcher();
  }, SHOWN_MS);
  for (const watcher of watchers) watcher();
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

export function Toasts() {
  const shown = useSyncExternalStore(watch, () => current);
  return (
    <div role="status" aria-live="polite">
      {shown && (
        <div className="toast" key={shown.id}>
          {shown.text}
        </div>
      )}
    </div>
  );
}
