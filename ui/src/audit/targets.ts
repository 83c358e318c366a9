/** Which entries of the audit log are asked for, and where one leads. */
import type { Schemas } from "../api/client";

export type Entry = Schemas["AuditEntry"];

const UUID = /^[0-9a-f]{8}-[0-9a-f-]{27}$/i;

/** The page of what was acted on; null where there is none. */
export function pageOf(entry: Pick<Entry, "action" | "target">): string | null {
  const { action, target } = entry;
  const noun = action.split(".")[0];
  const part = encodeURIComponent(target);
  switch (noun) {
    case "run":
    case "node":
    case "approval":
    case "link":
      return UUID.test(target) ? `/runs/${target}` : null;
    case "workflow":
    case "version":
      return `/workflows/${part}`;
    case "schedule":
      return `/schedules?name=${part}`;
    case "bulk_job":
      return `/bulk-jobs/${part}`;
    case "queue":
      return "/workers";
    case "rule":
      return "/limits";
    case "event":
      return `/events?name=${part}`;
    case "webhook":
      return "/events";
    case "view":
      return `/runs?view=${part}`;
    case "key":
    case "namespace":
    case "calendar":
      return "/settings";
    default:
      return null;
  }
}

export const FILTERS = ["actor", "action", "target", "since", "until"] as const;
export type FilterName = (typeof FILTERS)[number];
export type Filter = Partial<Record<FilterName, string>>;

export function filterOf(get: (name: string) => string | null): Filter {
  return Object.fromEntries(FILTERS.flatMap((name) => (get(name) ? [[name, get(name) as string]] : [])));
}

/** The command that prints the same. */
export function command(filter: Filter): string {
  const given = FILTERS.flatMap((name) => (filter[name] ? [`--${name} ${quoted(filter[name] as string)}`] : []));
  return ["perdure audit", ...given].join(" ");
}

function quoted(text: string): string {
  return /^[\w.:/@-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** "reason GPU nodes are being moved, workflow etl" */
export function detailText(detail: Entry["detail"]): string {
  if (!detail) return "";
  return Object.entries(detail)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}
