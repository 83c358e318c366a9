/** Which page is at which path, and how to load it. */
type Load = () => Promise<Record<string, unknown>>;

export const PAGES: [path: string, load: Load, component: string][] = [
  ["/runs", () => import("./runs/RunsPage"), "RunsPage"],
  ["/runs/$id", () => import("./run/RunPage"), "RunPage"],
  ["/bulk-jobs/$id", () => import("./runs/BulkJobPage"), "BulkJobPage"],
  ["/workflows", () => import("./workflows/WorkflowsPage"), "WorkflowsPage"],
  ["/workflows/$name", () => import("./workflows/WorkflowPage"), "WorkflowPage"],
  ["/schedules", () => import("./schedules/SchedulesPage"), "SchedulesPage"],
  ["/approvals", () => import("./approvals/ApprovalsPage"), "ApprovalsPage"],
  ["/workers", () => import("./workers/WorkersPage"), "WorkersPage"],
  ["/limits", () => import("./limits/LimitsPage"), "LimitsPage"],
  ["/dead-letters", () => import("./dead-letters/DeadLettersPage"), "DeadLettersPage"],
  ["/events", () => import("./events/EventsPage"), "EventsPage"],
  ["/audit", () => import("./audit/AuditPage"), "AuditPage"],
  ["/settings", () => import("./settings/SettingsPage"), "SettingsPage"],
];

/** How to load the page at an address; undefined where there is none. */
export function loaderOf(address: string): Load | undefined {
  const parts = (address === "/" ? "/runs" : address).split("/");
  return PAGES.find(([path]) => {
    const wanted = path.split("/");
    return wanted.length === parts.length && wanted.every((part, n) => part.startsWith("$") || part === parts[n]);
  })?.[1];
}
