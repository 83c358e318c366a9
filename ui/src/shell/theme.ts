import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
const KEY = "perdure.theme";
const watchers = new Set<() => void>();

export function theme(): Theme {
  const set = document.documentElement.dataset.theme;
  return set === "light" || set === "dark" ? set : "system";
}

export function setTheme(next: Theme): void {
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // Private windows may refuse; the choice then holds for this page.
  }
  for (const watcher of watchers) watcher();
}

const ORDER: Theme[] = ["system", "light", "dark"];

/** system, light, dark, and round again. */
export function nextTheme(): Theme {
  const next = ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length] as Theme;
  setTheme(next);
  return next;
}

export function useTheme(): Theme {
  return useSyncExternalStore((watcher) => {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  }, theme);
}
