/** The list of runs: its pages, and what changes while it is shown. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useEvents, useTopic } from "../api/stream";
import { type RunsRequest, requestOf } from "./chips";
import { readAgain, runsQuery } from "./data";
import { GATHERED_MAX, type LiveRuns, NOTHING_LIVE, type Row, receive, refresh, rowsOf, showGathered } from "./live";
import { isActive, matches, type RunSummary } from "./matching";
import { readQuery } from "./query";

const REFRESH_MS = 5_000;
/** The server takes as many ids in one query. */
const REFRESHED_MAX = 100;

export interface Runs {
  request: RunsRequest;
  rows: Row[];
  newRuns: number;
  showNew: () => void;
  error: Error | null;
  loading: boolean;
  /** Rows of the query before, while those of this one come. */
  stale: boolean;
  more: boolean;
  loadingMore: boolean;
  loadMore: () => void;
  reload: () => void;
  /** Which rows are on screen: they are kept up to date. */
  watch: (runs: readonly RunSummary[]) => void;
  /** Read the rows on screen again. */
  refreshShown: () => void;
}

export function useRuns(text: string, enabled = true): Runs {
  const request = useMemo(() => requestOf(text), [text]);
  const tree = useMemo(() => readQuery(text), [text]);
  const query = useInfiniteQuery({ ...runsQuery(request), enabled, placeholderData: (before) => before });
  const [live, setLive] = useState<LiveRuns>(NOTHING_LIVE);
  const pages = useMemo(() => query.data?.pages.map((page) => page.items) ?? [], [query.data]);
  const firstPage = pages[0];
  // biome-ignore lint/correctness/useExhaustiveDependencies: a list that is read anew begins without changes
  useEffect(() => setLive(NOTHING_LIVE), [text, firstPage]);

  useTopic("runs");
  useEvents<RunSummary>("run", (batch) => {
    if (query.isPlaceholderData || !query.data) return;
    const now = Date.now();
    setLive((before) =>
      receive(before, batch, { runs: pages.flat(), matches: (run) => (query.error ? null : matches(tree, run, now)) }),
    );
  });

  const watched = useRef<readonly RunSummary[]>([]);
  const watch = useCallback((runs: readonly RunSummary[]) => {
    watched.current = runs;
  }, []);
  const look = useCallback(
    (which: (run: RunSummary) => boolean) => {
      const asked = watched.current.filter(which).slice(0, REFRESHED_MAX);
      if (asked.length === 0 || document.visibilityState !== "visible") return;
      const verdict = (run: RunSummary) => matches(tree, run, Date.now());
      // A failure shows in the state of the stream; the next look tries again.
      readAgain(asked).then(
        (found) => setLive((before) => refresh(before, asked, found, verdict)),
        () => {},
      );
    },
    [tree],
  );
  useEffect(() => {
    const timer = setInterval(() => look(isActive), REFRESH_MS);
    return () => clearInterval(timer);
  }, [look]);

  const { refetch, fetchNextPage, hasNextPage, isFetchingNextPage } = query;
  const reload = useCallback(() => void refetch(), [refetch]);
  const loadMore = useCallback(() => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, fetchNextPage]);
  const rows = useMemo(() => rowsOf(pages, live), [pages, live]);
  return {
    request,
    rows,
    newRuns: live.gathered.length,
    showNew: () => (live.gathered.length > GATHERED_MAX ? reload() : setLive(showGathered)),
    error: query.error,
    loading: query.isPending && enabled,
    stale: query.isPlaceholderData,
    more: hasNextPage,
    loadingMore: isFetchingNextPage,
    loadMore,
    reload,
    watch,
    refreshShown: useCallback(() => look(() => true), [look]),
  };
}
