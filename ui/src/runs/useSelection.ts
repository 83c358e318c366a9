/** Which runs are selected: some rows, or all that match. */
import { useCallback, useEffect, useRef, useState } from "react";
import { toast } from "../shell/toasts";
import { NOTHING_SELECTED, PICKED_MAX, pick, pickRange, type Selection } from "./bulk";
import { isPureQuery } from "./chips";
import type { Runs } from "./useRuns";

/** Says so when no more can be picked. */
function full(next: Selection): Selection {
  if (next.ids.size >= PICKED_MAX) toast(`${PICKED_MAX} runs can be picked by hand; select all that match instead`);
  return next;
}

export function useSelection(text: string, runs: Runs, allowed: boolean) {
  const [selection, setSelection] = useState<Selection>(NOTHING_SELECTED);
  const last = useRef<string | null>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another query has other runs
  useEffect(() => setSelection(NOTHING_SELECTED), [text]);
  const ids = useRef<string[]>([]);
  ids.current = runs.rows.map((row) => row.run.id);
  const pickOne = useCallback((id: string, on: boolean, how?: { shift: boolean }) => {
    const from = how?.shift && on ? last.current : null;
    last.current = id;
    setSelection((before) => full(from ? pickRange(before, from, id, ids.current) : pick(before, id, on, ids.current)));
  }, []);
  return {
    selection: allowed ? selection : NOTHING_SELECTED,
    pick: pickOne,
    toggle: (id: string) => pickOne(id, !(selection.all || selection.ids.has(id))),
    loaded: (on: boolean) => {
      const [first, end] = [ids.current[0], ids.current.at(-1)];
      setSelection(on && first && end ? full(pickRange(NOTHING_SELECTED, first, end, ids.current)) : NOTHING_SELECTED);
    },
    all: () => {
      if (isPureQuery(runs.request)) setSelection({ all: true, ids: new Set() });
      else toast("A job takes a query alone: remove the search text or the computed wait reason");
    },
    clear: () => setSelection(NOTHING_SELECTED),
  };
}
