/** The URL is the whole state of a page: these read and change its query. */
import { useNavigate, useRouterState } from "@tanstack/react-router";
import { useCallback, useMemo } from "react";

export interface Url {
  path: string;
  get: (name: string) => string | null;
  /** Change parameters of the query; null or "" removes one. `push` makes an entry in the history. */
  set: (changes: Record<string, string | null | undefined>, how?: { push?: boolean }) => void;
}

export function useUrl(): Url {
  const location = useRouterState({ select: (s) => s.location });
  const navigate = useNavigate();
  const { pathname, searchStr } = location;
  const read = useMemo(() => new URLSearchParams(searchStr), [searchStr]);
  const get = useCallback((name: string) => read.get(name), [read]);
  const set = useCallback<Url["set"]>(
    (changes, how) => {
      // From the address as it is now: two changes in one turn must not undo each other.
      const next = new URLSearchParams(window.location.search);
      for (const [name, value] of Object.entries(changes)) {
        if (value === null || value === undefined || value === "") next.delete(name);
        else next.set(name, value);
      }
      const query = next.toString();
      void navigate({ href: `${window.location.pathname}${query ? `?${query}` : ""}`, replace: !how?.push } as never);
    },
    [navigate],
  );
  return useMemo(() => ({ path: pathname, get, set }), [pathname, get, set]);
}

export function useGo(): (href: string) => void {
  const navigate = useNavigate();
  return useCallback((href) => void navigate({ href } as never), [navigate]);
}
