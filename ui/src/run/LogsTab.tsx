/** What the run printed. The view follows the end until a person scrolls up. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useEvents, useTopic } from "../api/stream";
import { count } from "../format/numbers";
import { clockMillis, wholeTime } from "../format/times";
import { copyText } from "../parts/Copy";
import { Icon, StatusMark } from "../parts/icons";
import { visible } from "../parts/Payload";
import { Empty, Failed, Skeleton } from "../parts/states";
import { useKeys } from "../shell/keys";
import { useUrl } from "../shell/url";
import { useRunView } from "./context";
import { useLogPages } from "./data";
import { fileName, saveAs } from "./download";
import { add, type Buffer, EMPTY, filtered, follows, LEVELS, type Level, type Line, levelOf } from "./logBuffer";
import { nodeOf } from "./selection";

const LINE_PX = 21;
const LINE_CHARS_MAX = 4_000;
const OLDER_PX = 400;

type Arrived = Line & { run_id: string };

export function lineId(line: Line): string {
  return `${line.at}~${line.seq}`;
}

export function LogsTab() {
  const view = useRunView();
  const url = useUrl();
  const level = (LEVELS.find((l) => l === url.get("level")) ?? "debug") as Level;
  const onlyTask = url.get("logs") === "task";
  const seq = onlyTask ? (view.selection?.seq ?? view.node?.seq ?? null) : null;
  const of = onlyTask && view.selection ? (seq ?? view.selection.node) : null;
  const { buffer, pages } = useLines(of);
  const lines = useMemo(() => filtered(buffer.lines, level, null, null), [buffer, level]);
  const [following, setFollowing] = useState(url.get("line") === null);
  useKeys({ "shift+f": () => setFollowing((f) => !f) });
  const label = view.selection
    ? view.selection.seq === null
      ? view.selection.node
      : `${view.selection.node} #${view.selection.seq}`
    : "";
  return (
    <>
      <div className="tl-bar">
        <button
          type="button"
          className={`btn ghost sm ${following ? "st-running" : ""}`}
          aria-pressed={following}
          title="Follow the end (⇧F)"
          onClick={() => setFollowing(!following)}
        >
          {following ? <StatusMark status="running" /> : <Icon name="down" size={14} />}
          {following ? (view.active ? "Following" : "At the end") : "Follow"}
        </button>
        <label className="row small hide-narrow">
          <span className="muted">Level</span>
          <select
            className="input sm"
            value={level}
            onChange={(e) => url.set({ level: e.target.value === "debug" ? null : e.target.value })}
          >
            {LEVELS.map((l) => (
              <option key={l} value={l}>
                {l === "debug" ? "all levels" : l === "error" ? "errors" : `${l} and above`}
              </option>
            ))}
          </select>
        </label>
        {view.selection && (
          <label className="row small hide-narrow">
            <input
              type="checkbox"
              checked={onlyTask}
              onChange={(e) => url.set({ logs: e.target.checked ? "task" : null })}
            />
            <span>
              only <span className="mono">{label}</span>
            </span>
          </label>
        )}
        <span className="grow" />
        <span className="faint small hide-narrow">
          {count(lines.length)} lines{pages.hasNextPage ? ", more above" : ""}
        </span>
        <button
          type="button"
          className="btn sm"
          onClick={() => download(lines, view.run.key ?? view.run.id)}
          disabled={lines.length === 0}
        >
          Download
        </button>
      </div>
      {pages.error && <Failed error={pages.error} retry={() => void pages.refetch()} />}
      {pages.isPending ? (
        <Skeleton rows={14} height={21} />
      ) : lines.length === 0 ? (
        <Empty title="No lines" command={`perdure logs ${view.run.key ? `key:${view.run.key}` : view.run.id} --follow`}>
          {buffer.lines.length > 0
            ? "No line has this level."
            : view.active
              ? "What tasks print and log appears here as it happens."
              : "The run printed nothing, or its logs were deleted."}
        </Empty>
      ) : (
        <Lines
          lines={lines}
          following={following}
          setFollowing={setFollowing}
          onTop={() => pages.hasNextPage && !pages.isFetchingNextPage && void pages.fetchNextPage()}
        />
      )}
    </>
  );
}

function useLines(of: number | string | null) {
  const { name, run } = useRunView();
  const pages = useLogPages(name, of, true);
  const [live, setLive] = useState<{ of: typeof of; lines: Line[] }>({ of, lines: [] });
  const [since] = useState(() => new Date(Date.now() - 10_000).toISOString());
  useTopic(`logs:${run.id}@${since}`);
  useEvents<Arrived>("log", (batch) => {
    const mine = batch.filter(
      (l) => l.run_id === run.id && (of === null || l.seq === of || nodeOf({ name: l.task, node: l.node }) === of),
    );
    if (mine.length > 0) setLive((l) => ({ of, lines: l.of === of ? [...l.lines, ...mine].slice(-20_000) : mine }));
  });
  const read = useMemo(
    () => (pages.data?.pages ?? []).reduce<Buffer>((b, p) => add(b, [...p.items].reverse()), EMPTY),
    [pages.data],
  );
  const buffer = useMemo(() => (live.of === of ? add(read, live.lines) : read), [read, live, of]);
  return { buffer, pages };
}

function Lines(props: { lines: Line[]; following: boolean; setFollowing: (on: boolean) => void; onTop: () => void }) {
  const { lines, following, setFollowing } = props;
  const { selection, select, timeline } = useRunView();
  const url = useUrl();
  const marked = url.get("line");
  const chosen = url.get("task") !== null;
  const scroller = useRef<HTMLDivElement>(null);
  const lastTop = useRef(0);
  const virtual = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_PX,
    getItemKey: (n) => `${lineId(lines[n] as Line)}:${n - lines.length}`,
    overscan: 20,
  });
  const height = virtual.getTotalSize();
  // Lines that were measured are higher than they were taken for: the end moves without a new line.
  // biome-ignore lint/correctness/useExhaustiveDependencies: the height says when the end moves
  useLayoutEffect(() => {
    const node = scroller.current;
    if (following && node) node.scrollTop = node.scrollHeight;
  }, [following, lines.length, height]);
  useOlderStay(lines, virtual, following);
  const shownMark = useRef(false);
  useEffect(() => {
    const at = marked && !shownMark.current ? lines.findIndex((l) => lineId(l) === marked) : -1;
    if (at >= 0) {
      shownMark.current = true;
      virtual.scrollToIndex(at, { align: "center" });
    } else if (marked && !shownMark.current) props.onTop();
  }, [marked, lines, virtual, props.onTop]);
  const scrolled = () => {
    const node = scroller.current;
    if (!node) return;
    const at = { top: node.scrollTop, height: node.scrollHeight, view: node.clientHeight };
    const next = follows(following, at, lastTop.current);
    lastTop.current = at.top;
    if (next !== following) setFollowing(next);
    if (at.top < OLDER_PX) props.onTop();
  };
  const choose = useCallback(
    (line: Line) => {
      const name = nodeOf({ name: line.task, node: line.node });
      const node = timeline?.nodes.find((n) => n.node === name);
      select({ node: name, seq: node && node.tasks <= 1 ? null : line.seq });
    },
    [timeline, select],
  );
  return (
    <div
      className="log scroll grow"
      ref={scroller}
      role="log"
      aria-label="Logs"
      aria-live="off"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
      tabIndex={0}
      onScroll={scrolled}
      onWheel={(event) => event.deltaY < 0 && setFollowing(false)}
      onKeyDown={(event) => ["ArrowUp", "PageUp", "Home"].includes(event.key) && setFollowing(false)}
    >
      <section className="log-body" style={{ height }}>
        {virtual.getVirtualItems().map((item) => {
          const line = lines[item.index] as Line;
          const id = lineId(line);
          const is =
            chosen &&
            selection !== null &&
            (selection.seq !== null
              ? line.seq === selection.seq
              : nodeOf({ name: line.task, node: line.node }) === selection.node);
          return (
            <div
              key={item.key}
              ref={virtual.measureElement}
              data-index={item.index}
              className={`${classOf(line)} ${is ? "sel" : ""} ${marked === id ? "marked" : ""}`}
              style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${item.start}px)` }}
            >
              <button
                type="button"
                className="t"
                title={`${wholeTime(line.at)}. Copy a link to this line.`}
                onClick={() => {
                  url.set({ line: id });
                  void copyText(linkTo(id));
                }}
              >
                {clockMillis(line.at)}
              </button>
              <span className="l">{levelOf(line) === "warning" ? "warn" : levelOf(line)}</span>
              {line.task ? (
                <button type="button" className="w clip" title={line.task} onClick={() => choose(line)}>
                  {line.node ?? line.task}
                </button>
              ) : (
                <span className="w clip">workflow</span>
              )}
              <span className="m">
                {visible(
                  line.text.length > LINE_CHARS_MAX
                    ? `${line.text.slice(0, LINE_CHARS_MAX)}… (${count(line.text.length)} characters)`
                    : line.text,
                )}
              </span>
            </div>
          );
        })}
      </section>
    </div>
  );
}

/** When older lines come above, what is in sight stays where it is. */
function useOlderStay(
  lines: Line[],
  virtual: ReturnType<typeof useVirtualizer<HTMLDivElement, Element>>,
  following: boolean,
): void {
  const before = useRef({ first: "", count: 0 });
  useLayoutEffect(() => {
    const first = lines[0] ? lineId(lines[0]) : "";
    const { first: was, count: had } = before.current;
    before.current = { first, count: lines.length };
    if (!was || was === first || following || lines.length <= had) return;
    const added = lines.findIndex((l) => lineId(l) === was);
    if (added > 0) virtual.scrollToOffset((virtual.scrollOffset ?? 0) + added * LINE_PX);
  }, [lines, virtual, following]);
}

function classOf(line: Line): string {
  return { debug: "", info: "", warning: "warn", error: "error" }[levelOf(line)];
}

function linkTo(line: string): string {
  const link = new URL(location.href);
  link.searchParams.set("tab", "logs");
  link.searchParams.set("line", line);
  return link.href;
}

function download(lines: Line[], name: string): void {
  const text = lines
    .map((l) => `${l.at} ${levelOf(l).padEnd(7)} ${l.node ?? l.task ?? "workflow"}: ${l.text}`)
    .join("\n");
  saveAs(`${text}\n`, `${fileName(name)}.log`, "text/plain");
}
