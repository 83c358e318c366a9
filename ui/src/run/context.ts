/** What the parts of a run page share: the run, its timeline, and one selection. */
import { createContext, useContext } from "react";
import type { OpenTasks } from "./data";
import type { LiveHistory } from "./live";
import type { Selection } from "./selection";
import type { Open } from "./stable";
import type { Run, TabId, Timeline, TimelineNode } from "./types";

export interface RunView {
  /** As the address names it: an id, its beginning, or a key. */
  name: string;
  run: Run;
  timeline: Timeline | undefined;
  timelineError: Error | null;
  retryTimeline: () => void;
  active: boolean;
  /** The server's clock while the run is active, else null. */
  now: number | null;
  live: LiveHistory;
  selection: Selection | null;
  node: TimelineNode | null;
  select: (selection: Selection) => void;
  open: Open[];
  setOpen: (open: Open[]) => void;
  tasks: OpenTasks[];
  tab: TabId;
}

const Context = createContext<RunView | null>(null);
export const RunProvider = Context.Provider;

export function useRunView(): RunView {
  const view = useContext(Context);
  if (!view) throw new Error("useRunView outside of a run page");
  return view;
}
