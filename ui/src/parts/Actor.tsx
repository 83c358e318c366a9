/** Who did something. Keys are shown by their names, where the session may read them. */
import { useQuery } from "@tanstack/react-query";
import { api, body, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { actorName } from "./actors";
import { visible } from "./Payload";

const PAGE = 500;
/** Pages of keys that are read for their names. */
const PAGES_MAX = 4;
const FRESH_MS = 5 * 60_000;
const NONE: ReadonlyMap<string, string> = new Map();

async function readNames(): Promise<[string, string][]> {
  const names: [string, string][] = [];
  let cursor: string | undefined;
  for (let n = 0; n < PAGES_MAX; n++) {
    const page: Schemas["Page_ApiKey_"] = await body(
      api.GET("/api/v1/api-keys", { params: { query: { limit: PAGE, cursor } } }),
    );
    names.push(...page.items.map((key): [string, string] => [key.id, key.name]));
    if (!page.next) break;
    cursor = page.next;
  }
  return names;
}

function asMap(names: [string, string][]): ReadonlyMap<string, string> {
  return new Map(names);
}

/** Names of keys by their ids; a session that is no administrator knows its own only. */
export function useKeyNames(): ReadonlyMap<string, string> {
  const { session, may } = useSession();
  const found = useQuery({
    queryKey: ["api-keys", "names"],
    queryFn: readNames,
    select: asMap,
    enabled: may("admin"),
    staleTime: FRESH_MS,
    retry: false,
  });
  if (found.data) return found.data;
  const own = session.subject?.startsWith("key:") ? session.subject.slice("key:".length) : null;
  return own && session.name ? new Map([[own, session.name]]) : NONE;
}

export function Actor({ subject }: { subject: string }) {
  const name = visible(actorName(subject, useKeyNames()));
  return name === subject ? name : <span title={visible(subject)}>{name}</span>;
}
