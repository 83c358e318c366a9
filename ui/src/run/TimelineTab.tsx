/** The run over time: one row for each node, fan-outs that open, one axis for all. Only rows in sight are drawn. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { ms } from "../format/times";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Segments } from "../parts/Tabs";
import { useUrl } from "../shell/url";
import { extent, forecast } from "./boxes";
import { useRunView } from "./context";
import { heightOf, isSelected, type Row, segmentsOf, selectionOf } from "./rows";
import { makeScale, panWindow, type Scale, timeAt, x, zoomWindow } from "./scale";
import { SHOWN_FIRST } from "./stable";
import { Axis, Rules } from "./timeline/Axis";
import { MoreRow, openEnd, TimelineRow } from "./timeline/TimelineRow";
import type { Timeline } from "./types";
import { readZoom, windowOf, writeZoom, type Zoom } from "./zoom";

const AXIS_PX = 24;
const URL_MS = 200;
const WHEEL_PER_STEP = 400;

export function TimelineTab({ rows }: { rows: Row[] }) {
  const view = useRunView();
  if (view.timelineError && !view.timeline) return <Failed error={view.timelineError} retry={view.retryTimeline} />;
  if (!view.timeline) return <Skeleton rows={10} height={26} />;
  if (view.timeline.nodes.length === 0)
    return (
      <Empty title="No tasks yet" command={`perdure watch ${view.run.key ? `key:${view.run.key}` : view.run.id}`}>
        {view.active
          ? "The run's code has not asked for a task. They appear here as they are scheduled."
          : "The run ended without a task."}
      </Empty>
    );
  return <Lanes timeline={view.timeline} rows={rows} />;
}

function Lanes({ timeline, rows }: { timeline: Timeline; rows: Row[] }) {
  const { now, selection, select, open, setOpen } = useRunView();
  const opened = useRef(open);
  opened.current = open;
  const toggle = useCallback(
    (node: string) => {
      const rest = opened.current.filter((o) => o.node !== node);
      setOpen(rest.length < opened.current.length ? rest : [...rest, { node, status: null, shown: SHOWN_FIRST }]);
    },
    [setOpen],
  );
  const url = useUrl();
  const scroller = useRef<HTMLDivElement>(null);
  const width = useLaneWidth(scroller);
  const { zoom, setZoom } = useZoom();
  const unfolded = url.get("fold") === "off";
  const start = ms(timeline.from);
  const end = now === null ? ms(timeline.to) : Math.max(now, ms(timeline.to));
  const selected = rows.find((r) => isSelected(r, selection));
  const span = selected ? extent(segmentsOf(selected), selected.type === "node" ? selected.node : null, end) : null;
  const expected = useMemo(
    () => (timeline.ended ? new Map() : forecast(timeline.nodes, Math.floor(end / 1000) * 1000)),
    [timeline, end],
  );
  const scale = useMemo(() => {
    const idle = timeline.idle.map(([a, b], n): [number, number] => [
      ms(a),
      !timeline.ended && n === timeline.idle.length - 1 && b === timeline.to ? end : ms(b),
    ]);
    const last = Math.max(end, ...[...expected.values()].map((e) => e.to));
    const until = last + (last - end) * 0.06;
    const window = windowOf(zoom, start, end, span);
    return makeScale({ from: start, to: end, now: timeline.ended ? null : end, idle, until, window, unfolded });
    // The span is made anew with every paint; its ends tell.
  }, [timeline, start, end, expected, zoom, unfolded, span?.[0], span?.[1]]);

  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: (n) => heightOf(rows[n] as Row),
    getItemKey: useCallback((n: number) => rows[n]?.key ?? n, [rows]),
    overscan: 10,
    scrollMargin: AXIS_PX,
    scrollPaddingStart: AXIS_PX,
  });
  const at = rows.findIndex((r) => isSelected(r, selection));
  const shownFor = useRef("");
  useEffect(() => {
    const key = rows[at]?.key ?? "";
    if (at >= 0 && key !== shownFor.current) virtual.scrollToIndex(at, { align: "auto" });
    shownFor.current = key;
  }, [at, rows, virtual]);

  const bounds: [number, number] = useMemo(() => [start, end], [start, end]);
  useWheelZoom(scroller, scale, bounds, start, setZoom);
  const chooseRow = useCallback(
    (row: Row) => {
      const found = selectionOf(row);
      if (found) select(found);
    },
    [select],
  );
  const brush = useCallback(
    (a: number, b: number) => {
      const [from, to] = [timeAt(scale, Math.min(a, b)), timeAt(scale, Math.max(a, b))];
      setZoom({ kind: "window", from: Math.max(from - start, 0) / 1000, to: (to - start) / 1000 });
    },
    [scale, start, setZoom],
  );
  return (
    <>
      <Bar zoom={zoom} setZoom={setZoom} canSelect={span !== null} truncated={timeline.truncated} />
      <div className="tl scroll" ref={scroller}>
        <Axis
          scale={scale}
          width={width}
          start={start}
          onBrush={brush}
          onStep={(by) => setZoom(stepped(scale, bounds, start, by))}
          onZoom={(by) => setZoom(asZoom(zoomWindow(scale, bounds, 0.5, by), start))}
          onReset={() => setZoom({ kind: "fit" })}
          unfolded={unfolded}
          onFold={() => url.set({ fold: unfolded ? null : "off" })}
        />
        <div className="tl-body" role="tree" aria-label="Tasks over time" style={{ height: virtual.getTotalSize() }}>
          <Rules scale={scale} width={width} />
          {virtual.getVirtualItems().map((item) => {
            const row = rows[item.index] as Row;
            const top = item.start - AXIS_PX;
            return row.type === "more" ? (
              <MoreRow key={row.key} row={row} top={top} />
            ) : (
              <TimelineRow
                key={row.key}
                row={row}
                top={top}
                index={item.index}
                count={rows.length}
                scale={scale}
                width={width}
                now={openEnd(row, now)}
                selected={item.index === at}
                focusable={item.index === Math.max(at, 0)}
                expected={row.type === "node" ? expected.get(row.node.node) : undefined}
                onSelect={chooseRow}
                onToggle={toggle}
              />
            );
          })}
        </div>
      </div>
    </>
  );
}

const asZoom = (window: [number, number] | null, start: number): Zoom =>
  window
    ? { kind: "window", from: Math.max(window[0] - start, 0) / 1000, to: (window[1] - start) / 1000 }
    : { kind: "fit" };

function stepped(scale: Scale, bounds: [number, number], start: number, by: number): Zoom {
  return asZoom(panWindow([scale.from, scale.to], bounds, by), start);
}

function Bar(props: { zoom: Zoom; setZoom: (zoom: Zoom) => void; canSelect: boolean; truncated: boolean }) {
  return (
    <div className="tl-bar">
      <div className="tl-key">
        <span>
          <i className="seg-q" />
          Queued
        </span>
        <span>
          <i className="seg-r" />
          Running
        </span>
        <span>
          <i className="seg-s" />
          Success
        </span>
        <span>
          <i className="seg-f" />
          Failed attempt
        </span>
        <span className="hide-narrow">
          <i className="seg-e" />
          Expected (p50)
        </span>
      </div>
      {props.truncated && <span className="faint small hide-narrow">The first 500 are shown.</span>}
      <span className="grow" />
      <Segments
        label="Zoom"
        value={props.zoom.kind === "window" ? "" : props.zoom.kind}
        onChange={(id) =>
          (id !== "selection" || props.canSelect) && props.setZoom({ kind: id as "fit" | "last" | "selection" })
        }
        options={[
          { id: "fit", label: "Fit" },
          { id: "last", label: "Last 10 m" },
          { id: "selection", label: "Selection" },
        ]}
      />
    </div>
  );
}

/** The zoom of the address; while a wheel turns it changes here first. */
function useZoom(): { zoom: Zoom; setZoom: (zoom: Zoom) => void } {
  const url = useUrl();
  const text = url.get("zoom");
  const [moving, setMoving] = useState<Zoom | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const write = url.set;
  const setZoom = useCallback(
    (zoom: Zoom) => {
      setMoving(zoom);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => {
        write({ zoom: writeZoom(zoom) });
        setMoving(null);
      }, URL_MS);
    },
    [write],
  );
  return { zoom: useMemo(() => moving ?? readZoom(text), [moving, text]), setZoom };
}

/** With Ctrl or ⌘, or by a pinch, the wheel zooms about the pointer; sideways or with Shift it moves. */
function useWheelZoom(
  scroller: React.RefObject<HTMLDivElement | null>,
  scale: Scale,
  bounds: [number, number],
  start: number,
  setZoom: (zoom: Zoom) => void,
): void {
  const latest = useRef({ scale, bounds, start, setZoom });
  latest.current = { scale, bounds, start, setZoom };
  useEffect(() => {
    const node = scroller.current;
    if (!node) return;
    const wheel = (event: WheelEvent) => {
      const { scale, bounds, start, setZoom } = latest.current;
      const lane = node.querySelector(".tl-axis")?.getBoundingClientRect();
      if (!lane || lane.width === 0) return;
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      const scaled = event.ctrlKey || event.metaKey;
      if (!scaled && !sideways && !event.shiftKey) return;
      event.preventDefault();
      if (scaled) {
        const at = Math.min(Math.max((event.clientX - lane.left) / lane.width, 0), 1);
        setZoom(asZoom(zoomWindow(scale, bounds, at, Math.exp(-event.deltaY / WHEEL_PER_STEP)), start));
      } else if (x(scale, bounds[0]) !== x(scale, bounds[1]) && scale.to - scale.from < bounds[1] - bounds[0]) {
        setZoom(stepped(scale, bounds, start, (sideways ? event.deltaX : event.deltaY) / lane.width));
      }
    };
    node.addEventListener("wheel", wheel, { passive: false });
    return () => node.removeEventListener("wheel", wheel);
  }, [scroller]);
}

function useLaneWidth(scroller: React.RefObject<HTMLDivElement | null>): number {
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const node = scroller.current;
    if (!node) return;
    const watch = new ResizeObserver(() => {
      const lane = node.querySelector(".tl-axis");
      if (lane) setWidth(Math.max(lane.clientWidth, 50));
    });
    watch.observe(node);
    return () => watch.disconnect();
  }, [scroller]);
  return width;
}
