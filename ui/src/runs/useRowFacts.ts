/** What rows need to know of their workflows: usual durations, and how old a version is. */
import { useQueries, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { RowFacts } from "./columns";
import { durationsQuery, type WorkflowDetail, workflowQuery, workflowsQuery } from "./data";
import type { Row } from "./live";

/** Workflows with older versions in the list whose versions are read. */
const WORKFLOWS_READ = 12;

/** How many registrations lie between a version and the current one. Null for one that is unknown or newer. */
export function versionsBehind(versions: WorkflowDetail["versions"], version: string): number | null {
  const newestFirst = [...versions].sort((a, b) => (a.registered_at < b.registered_at ? 1 : -1));
  const current = newestFirst.findIndex((one) => one.current);
  const own = newestFirst.findIndex((one) => one.version === version);
  return current < 0 || own <= current ? null : own - current;
}

/** Outside of the hook, so that rows are drawn again only when an answer changes. */
function versionsByName(found: { data?: WorkflowDetail }[]): Map<string, WorkflowDetail["versions"]> {
  return new Map(found.flatMap(({ data }) => (data ? [[data.name, data.versions] as const] : [])));
}

export function useRowFacts(rows: Row[]): RowFacts {
  const durations = useQuery(durationsQuery()).data;
  const workflows = useQuery(workflowsQuery()).data;
  const old = useMemo(() => {
    const current = new Map(workflows?.map((one) => [one.name, one.version]));
    const names = rows.filter(({ run }) => current.has(run.workflow) && current.get(run.workflow) !== run.version);
    return [...new Set(names.map(({ run }) => run.workflow))].sort().slice(0, WORKFLOWS_READ);
  }, [rows, workflows]);
  const details = useQueries({
    queries: old.map((name) => workflowQuery(name)),
    combine: versionsByName,
  });
  return useMemo(
    () => ({
      p95: (workflow) => durations?.get(workflow)?.p95_s ?? null,
      behind: (run) => {
        const versions = details.get(run.workflow);
        return versions ? versionsBehind(versions, run.version) : null;
      },
    }),
    [durations, details],
  );
}
