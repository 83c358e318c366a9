/** The time axis: ticks, folds, now. A part of it is chosen by dragging, or by keys. */
import { type KeyboardEvent, memo, type PointerEvent, useMemo, useRef, useState } from "react";
import { duration } from "../../format/durations";
import { clock, clockMinutes, day } from "../../format/times";
import { type Piece, type Scale, type Tick, ticks, x } from "../scale";

const TICK_PX = 62;
const BRUSH_LEAST = 0.01;

export function Axis(props: {
  scale: Scale;
  width: number;
  start: number;
  unfolded: boolean;
  onBrush: (from: number, to: number) => void;
  onStep: (by: number) => void;
  onZoom: (by: number) => void;
  onReset: () => void;
  onFold: () => void;
}) {
  const { scale } = props;
  const shown = useTicks(scale, props.width);
  const folds = scale.pieces.filter((p) => p.kind === "fold");
  const future = scale.pieces.find((p) => p.kind === "future" && scale.now !== null);
  const { brush, handlers } = useBrush(props.onBrush);
  const keys = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    const zoom = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 }[event.key];
    if (step) props.onStep(step);
    else if (zoom) props.onZoom(zoom);
    else if (event.key === "0") props.onReset();
    else return;
    event.preventDefault();
  };
  return (
    <div
      className="tl-axis"
      role="group"
      aria-label="Time axis. Drag to zoom; arrow keys move, plus and minus zoom, 0 shows all."
      // biome-ignore lint/a11y/noNoninteractiveTabindex: it takes keys
      tabIndex={0}
      onKeyDown={keys}
      onDoubleClick={props.onReset}
      {...handlers}
    >
      {shown.map((tick, n) => (
        <span key={tick.at} className={n === 0 ? "keep" : ""} style={{ left: `${clampTick(tick.x, props.width)}%` }}>
          {words(tick, props.start)}
        </span>
      ))}
      {folds.map((fold) => (
        <FoldTag key={fold.from} fold={fold} onClick={props.onFold} />
      ))}
      {props.unfolded && (
        <button type="button" className="tl-gap-tag" style={{ left: "50%" }} onClick={props.onFold}>
          fold idle times
        </button>
      )}
      {future && future.to - future.from > 60_000 && (future.right - future.left) * props.width > 90 && (
        <span className="keep" style={{ left: `calc(100% - 22px)` }}>
          ~{clockMinutes(future.to)}
        </span>
      )}
      {scale.now !== null && scale.now <= scale.to + 1 && (
        <span className="now" style={{ left: `${x(scale, scale.now) * 100}%` }}>
          {clockMinutes(scale.now)}
        </span>
      )}
      {brush && (
        <i
          className="tl-brush"
          style={{ left: `${Math.min(...brush) * 100}%`, width: `${Math.abs(brush[1] - brush[0]) * 100}%` }}
        />
      )}
    </div>
  );
}

function FoldTag({ fold, onClick }: { fold: Piece; onClick: () => void }) {
  return (
    <button
      type="button"
      className="tl-gap-tag"
      style={{ left: `${((fold.left + fold.right) / 2) * 100}%` }}
      title={`Idle ${clock(fold.from)} to ${clock(fold.to)}. Click to unfold.`}
      onPointerDown={(event) => event.stopPropagation()}
      onClick={onClick}
    >
      {duration((fold.to - fold.from) / 1000).replace(/ \d+ s$/, "")} idle
    </button>
  );
}

/** Lines at the ticks, the ground of folds, and now. */
export const Rules = memo(function Rules({ scale, width }: { scale: Scale; width: number }) {
  const shown = useTicks(scale, width);
  return (
    <div className="tl-rules" aria-hidden="true">
      {shown.map((tick) => (
        <i key={tick.at} style={{ left: `${tick.x * 100}%` }} />
      ))}
      {scale.pieces
        .filter((p) => p.kind === "fold")
        .map((fold) => (
          <div
            key={fold.from}
            className="tl-gap"
            style={{ left: `${fold.left * 100}%`, width: `${(fold.right - fold.left) * 100}%` }}
          />
        ))}
      {scale.now !== null && scale.now <= scale.to + 1 && (
        <div className="tl-now" style={{ left: `${x(scale, scale.now) * 100}%` }} />
      )}
    </div>
  );
});

function useTicks(scale: Scale, width: number): Tick[] {
  return useMemo(
    () => ticks(scale, TICK_PX / Math.max(width, 200), -new Date(scale.from).getTimezoneOffset() * 60_000),
    [scale, width],
  );
}

/** Labels at the edges stay whole. */
function clampTick(at: number, width: number): number {
  const half = 17 / Math.max(width, 100);
  return Math.min(Math.max(at, half), 1 - half) * 100;
}

function words(tick: Tick, start: number): string {
  if (tick.step < 1000) return `+${duration((tick.at - start) / 1000)}`;
  if (tick.step < 60_000) return clock(tick.at);
  return tick.step < 86_400_000 ? clockMinutes(tick.at) : day(tick.at);
}

function useBrush(onBrush: (from: number, to: number) => void) {
  const [brush, setBrush] = useState<[number, number] | null>(null);
  const from = useRef<number | null>(null);
  const at = (event: PointerEvent<HTMLDivElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  return {
    brush,
    handlers: {
      onPointerDown: (event: PointerEvent<HTMLDivElement>) => {
        if (event.button !== 0) return;
        from.current = at(event);
        event.currentTarget.setPointerCapture(event.pointerId);
      },
      onPointerMove: (event: PointerEvent<HTMLDivElement>) => {
        if (from.current !== null) setBrush([from.current, at(event)]);
      },
      onPointerUp: (event: PointerEvent<HTMLDivElement>) => {
        const begun = from.current;
        from.current = null;
        setBrush(null);
        if (begun !== null && Math.abs(at(event) - begun) > BRUSH_LEAST) onBrush(begun, at(event));
      },
      onPointerCancel: () => {
        from.current = null;
        setBrush(null);
      },
    },
  };
}
