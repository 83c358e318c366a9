/** Runs over time, which is also the time brush: drag to select, or move its edges with the arrow keys. */
import { useQuery } from "@tanstack/react-query";
import { memo, type PointerEvent, useRef, useState } from "react";
import { duration } from "../format/durations";
import { count } from "../format/numbers";
import { clockMinutes, day, ms, time } from "../format/times";
import { sentenceCase } from "../parts/Status";
import { Failed } from "../parts/states";
import {
  barsOf,
  edgeAt,
  type Layer,
  moveEdge,
  onEdge,
  type Range,
  rangeOf,
  reachFor,
  shareOf,
  ticksOf,
  withRange,
} from "./brush";
import { workflowOf } from "./chips";
import { type Histogram, histogramQuery } from "./data";

const HEIGHT = 46;
const BIN_WIDTH = 10;
const LEGEND: Layer[] = ["success", "failed", "running", "pending", "cancelled"];
const DAY_MS = 86_400_000;

export function Activity({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  const reach = reachFor(text, Date.now());
  const workflow = workflowOf(text);
  const { data, error, refetch } = useQuery(histogramQuery(reach.since, workflow));
  if (!data) {
    if (error) return <Failed error={error} retry={() => void refetch()} />;
    return <section className="activity" aria-busy="true" style={{ height: 106 }} />;
  }
  return (
    <section className="activity" aria-label={`Runs started over the last ${reach.words}`}>
      <div className="legend">
        {LEGEND.map((layer) => (
          <span key={layer}>
            <i className={`fill-${layer}`} />
            {sentenceCase(layer)} <b>{count(data.totals[layer])}</b>
            {data.capped && (layer === "running" || layer === "pending") && "+"}
          </span>
        ))}
        <span className="grow" />
        <span className="faint hide-narrow">
          Runs{workflow && ` of ${workflow}`} started, {reach.words} in{" "}
          {duration(data.bin_s).replace(" 00 s", "in").replace(" 00 m", "")} bins. Drag to select.
        </span>
      </div>
      <Brush data={data} text={text} onChange={onChange} />
    </section>
  );
}

/** The bars change with the data alone; the brush may move sixty times a second. */
const Bars = memo(function Bars({ data }: { data: Histogram }) {
  return (
    <svg viewBox={`0 0 ${data.bins.length * BIN_WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      {barsOf(data.bins, HEIGHT).map((bar) => (
        <rect
          key={`${bar.bin}-${bar.layer}`}
          className={`fill-${bar.layer}`}
          x={bar.bin * BIN_WIDTH + 1}
          y={bar.y}
          width={BIN_WIDTH - 2}
          height={bar.height}
        />
      ))}
    </svg>
  );
});

function Brush({ data, text, onChange }: { data: Histogram; text: string; onChange: (text: string) => void }) {
  const window = { from: ms(data.from), to: ms(data.to) };
  const binMs = data.bin_s * 1000;
  const box = useRef<HTMLDivElement>(null);
  const [dragged, setDragged] = useState<Range | null>(null);
  const drag = useRef<{ from: number; keep: "from" | "to" | null } | null>(null);
  const asked = rangeOf(text, window, Date.now());
  const range = dragged ?? asked;
  const at = (event: PointerEvent) => {
    const place = box.current?.getBoundingClientRect();
    return edgeAt(place ? (event.clientX - place.left) / place.width : 0, window, binMs);
  };
  const apply = (next: Range | null) => onChange(withRange(text, next, window));
  const start = (event: PointerEvent) => {
    if (event.button !== 0) return;
    const edge = (event.target as HTMLElement).dataset.edge as "from" | "to" | undefined;
    // Holding an edge moves that one; anywhere else a new range begins.
    const from = edge && asked ? onEdge(asked[edge === "from" ? "to" : "from"], window, binMs) : at(event);
    drag.current = { from, keep: edge ?? null };
    box.current?.setPointerCapture(event.pointerId);
  };
  const move = (event: PointerEvent) => {
    if (!drag.current) return;
    const here = at(event);
    const [a, b] = [Math.min(here, drag.current.from), Math.max(here, drag.current.from)];
    setDragged(a === b ? null : { from: a, to: b });
  };
  const stop = () => {
    if (dragged) apply(dragged);
    drag.current = null;
    setDragged(null);
  };
  return (
    <div
      className="histo"
      role="group"
      aria-label="Time brush"
      ref={box}
      onPointerDown={start}
      onPointerMove={move}
      onPointerUp={stop}
      onPointerCancel={() => {
        drag.current = null;
        setDragged(null);
      }}
      onDoubleClick={() => apply(null)}
    >
      <Bars data={data} />
      <Edges range={range} window={window} binMs={binMs} onMove={apply} />
      <Axis window={window} />
    </div>
  );
}

function Edges(props: { range: Range | null; window: Range; binMs: number; onMove: (range: Range | null) => void }) {
  const { window, binMs } = props;
  const range = props.range ?? window;
  const [left, right] = [shareOf(range.from, window) * 100, shareOf(range.to, window) * 100];
  const isWhole = left === 0 && right === 100;
  return (
    <>
      {props.range && !isWhole && (
        <>
          <div className="dim" style={{ left: 0, width: `${left}%` }} />
          <div className="dim" style={{ left: `${right}%`, right: 0 }} />
          <div className="brush" style={{ left: `${left}%`, width: `${right - left}%` }} />
        </>
      )}
      {(["from", "to"] as const).map((edge) => (
        <div
          key={edge}
          className={`edge ${props.range ? "" : "idle"}`}
          role="slider"
          tabIndex={0}
          data-edge={edge}
          style={{ left: `${edge === "from" ? left : right}%` }}
          aria-label={edge === "from" ? "Runs created from" : "Runs created until"}
          aria-valuemin={0}
          aria-valuemax={Math.round((window.to - window.from) / binMs)}
          aria-valuenow={Math.round((onEdge(range[edge], window, binMs) - window.from) / binMs)}
          aria-valuetext={range[edge] >= window.to ? "now" : time(range[edge])}
          onKeyDown={(event) => {
            if (event.key === "Escape" && props.range) {
              event.stopPropagation();
              props.onMove(null);
              return;
            }
            const bins = steps(event.key, Math.round((window.to - window.from) / binMs));
            if (bins === 0) return;
            event.preventDefault();
            const snapped = { from: onEdge(range.from, window, binMs), to: onEdge(range.to, window, binMs) };
            props.onMove(moveEdge(snapped, edge, bins, window, binMs));
          }}
        />
      ))}
    </>
  );
}

function steps(key: string, whole: number): number {
  const moves: Record<string, number> = {
    ArrowLeft: -1,
    ArrowDown: -1,
    ArrowRight: 1,
    ArrowUp: 1,
    PageDown: -4,
    PageUp: 4,
    Home: -whole,
    End: whole,
  };
  return moves[key] ?? 0;
}

function Axis({ window }: { window: Range }) {
  const days = window.to - window.from > 2 * DAY_MS;
  return (
    <div className="axis" aria-hidden="true">
      {ticksOf(window).map((at) => (
        <span key={at} style={{ left: `${shareOf(at, window) * 100}%` }}>
          {days ? day(at) : clockMinutes(at)}
        </span>
      ))}
      <span style={{ left: "100%" }}>now</span>
    </div>
  );
}
