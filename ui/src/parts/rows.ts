/** Rows of lists: where they lead, and keeping the selected one in view. */
import { nodeOf, writeSelection } from "../run/selection";

/** The page of a run with one of its tasks selected. */
export function taskPage(task: { run_id: string; seq: number; name: string; node: string | null }): string {
  return `/runs/${task.run_id}?task=${encodeURIComponent(writeSelection({ node: nodeOf(task), seq: task.seq }))}`;
}

/** After a key moved the selection: bring its row into view, once it is painted. */
export function showSelected(): void {
  requestAnimationFrame(() =>
    requestAnimationFrame(() =>
      document.querySelector('[aria-selected="true"], .item[aria-current]')?.scrollIntoView({ block: "nearest" }),
    ),
  );
}
