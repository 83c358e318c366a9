/** One row of the timeline: its name, and what happened on the axis. */
import { memo } from "react";
import { count } from "../../format/numbers";
import { ms } from "../../format/times";
import { iconOfKind } from "../../graph/shapes";
import { Icon, StatusMark, type StatusWord } from "../../parts/icons";
import { sentenceCase } from "../../parts/Status";
import { boxes, CLASSES, type Expected, laneWords } from "../boxes";
import { useRunView } from "../context";
import { isFan, type Row, segmentsOf } from "../rows";
import { type Scale, x } from "../scale";
import { labelOf } from "../selection";
import { SHOWN_STEP } from "../stable";
import type { Counts, Segment, TimelineNode } from "../types";
import { FanLane } from "./FanLane";

export interface RowProps {
  row: Exclude<Row, { type: "more" }>;
  top: number;
  index: number;
  count: number;
  scale: Scale;
  width: number;
  now: number | null;
  selected: boolean;
  focusable: boolean;
  expected: Expected | undefined;
  onSelect: (row: Row) => void;
  onToggle: (node: string) => void;
}

export const TimelineRow = memo(function TimelineRow(props: RowProps) {
  const { row, selected } = props;
  const fan = row.type === "node" && isFan(row.node);
  const open = row.type === "node" && row.open;
  const toggle = () => props.onToggle(row.node.node);
  const status: StatusWord = row.type === "node" ? row.node.status : row.task.status;
  const name = row.type === "node" ? row.node.node : labelOf(row.task);
  const segments = segmentsOf(row);
  const said = wordsOf(row, segments, props.now);
  return (
    <div
      className={`tl-row ${row.type === "task" ? "kid" : ""} ${fan ? "fan" : ""} ${open ? "open" : ""}`}
      role="treeitem"
      aria-level={row.type === "task" ? 2 : 1}
      aria-posinset={props.index + 1}
      aria-setsize={props.count}
      aria-expanded={fan ? open : undefined}
      aria-selected={selected}
      data-row={row.key}
      tabIndex={props.focusable ? 0 : -1}
      style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${props.top}px)` }}
      onClick={() => props.onSelect(row)}
      onKeyDown={(event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          props.onSelect(row);
        }
        if (fan && ((event.key === "ArrowRight" && !open) || (event.key === "ArrowLeft" && open))) toggle();
      }}
    >
      <div className="tl-name">
        {fan && (
          <button
            type="button"
            className="twist-btn"
            tabIndex={-1}
            aria-hidden="true"
            title={open ? `Close ${name}` : `Open ${name}`}
            onClick={(event) => {
              event.stopPropagation();
              toggle();
            }}
          >
            <Icon name="right" className="twist" />
          </button>
        )}
        <StatusMark status={status} />
        {row.type === "node" && !fan && row.node.kind !== "task" && <Icon name={iconOfKind(row.node.kind)} />}
        <span className="clip">
          <span className="mono">{name}</span>
          <span className="sr">, {status}, </span>
          {fan && row.type === "node" && <small>{fanWords(row.node)}</small>}
        </span>
        {!fan && <Attempts n={row.type === "node" ? row.node.attempts : row.task.attempts} />}
      </div>
      {fan && row.type === "node" ? (
        <FanLane node={row.node} scale={props.scale} width={props.width} now={props.now} expected={props.expected} />
      ) : (
        <Lane
          segments={segments}
          scale={props.scale}
          now={openEnd(row, props.now)}
          said={said}
          expected={props.expected}
        />
      )}
    </div>
  );
});

/** What has ended does not grow. */
export function openEnd(row: RowProps["row"], now: number | null): number | null {
  const done = row.type === "node" ? row.node.finished_at : row.task.finished_at;
  return done ? null : now;
}

function wordsOf(row: RowProps["row"], segments: Segment[], now: number | null): string {
  const end = openEnd(row, now);
  if (row.type === "task") return laneWords({ status: row.task.status, segments, worker: row.task.worker }, end);
  const worker = segments.at(-1)?.worker ?? null;
  return laneWords({ status: row.node.status, segments, after: row.node.after, worker }, end);
}

function Attempts({ n }: { n: number }) {
  return n > 1 ? (
    <span className="x" title={`${n} attempts`}>
      ×{n}
    </span>
  ) : null;
}

export function fanWords(node: TimelineNode): string {
  const told = (["running", "dispatched", "failed", "pending"] as const).find((s) => node.counts[s]);
  return `${count(node.tasks)} tasks${told ? `, ${count(node.counts[told])} ${told}` : ""}`;
}

function Lane(props: {
  segments: Segment[];
  scale: Scale;
  now: number | null;
  said: string;
  expected: Expected | undefined;
}) {
  const { scale, expected } = props;
  const drawn = boxes(props.segments, scale, props.now);
  const last = drawn.at(-1);
  const right = last ? last.left + last.width : 0;
  const outOfSight = props.segments.length > 0 && !last;
  const atNow = props.now !== null && last !== undefined && (last.kind === "running" || last.kind === "queued");
  return (
    <div className="tl-lane">
      {drawn.map((box) => (
        <i
          key={box.key}
          className={`tl-seg seg-${CLASSES[box.kind]}`}
          style={{ left: `${box.left * 100}%`, width: `${box.width * 100}%` }}
          title={box.title}
        />
      ))}
      {expected && <ExpectedBox expected={expected} scale={scale} />}
      {props.said && !outOfSight && (
        <span className={`tl-dur ${atNow ? "at-now" : ""}`} style={place(props.segments, right, scale)}>
          {props.said}
        </span>
      )}
    </div>
  );
}

/** Of the lane, about what a duration takes: it does not lie across the line of now. */
const LABEL_SHARE = 0.066;

/** Behind the last bar; before it when there is no room; left of now for what has not begun. */
function place(segments: Segment[], right: number, scale: Scale): React.CSSProperties {
  if (segments.length === 0) return { right: `${(1 - (scale.now === null ? 1 : x(scale, scale.now))) * 100}%` };
  const now = scale.now === null ? 1 : x(scale, scale.now);
  if (right < now && right > now - LABEL_SHARE && now <= 0.93) return { left: `${now * 100}%` };
  if (right <= 0.93) return { left: `${right * 100}%` };
  const from = x(scale, Math.max(ms(segments.at(-1)?.from ?? 0), scale.from));
  return from > 0.2 ? { right: `${(1 - from) * 100}%` } : { right: 0, color: "var(--text)" };
}

export function ExpectedBox({ expected, scale }: { expected: Expected; scale: Scale }) {
  const edge = scale.pieces.at(-1)?.to ?? scale.to;
  if (expected.from > edge) return null;
  const left = x(scale, expected.from);
  return (
    <i
      className="tl-seg seg-e"
      style={{ left: `${left * 100}%`, width: `${Math.max(x(scale, expected.to) - left, 0.002) * 100}%` }}
      title="expected, from the median of earlier runs"
    />
  );
}

/** What of a fan-out is not shown, and how to see it. */
export function MoreRow({ row, top }: { row: Extract<Row, { type: "more" }>; top: number }) {
  const { open, setOpen } = useRunView();
  const { tasks, node } = row;
  const change = (change: Partial<(typeof open)[number]>) =>
    setOpen(open.map((o) => (o.node === node.node ? { ...o, ...change } : o)));
  const status = tasks.open.status;
  const total = status ? (node.counts[status as keyof Counts] ?? tasks.items.length) : node.tasks;
  const filters = (["failed", "running", "dispatched", "pending"] as const).filter((s) => node.counts[s]);
  return (
    <div
      className="tl-more kid-more"
      role="treeitem"
      aria-level={2}
      aria-selected={false}
      aria-label={`More of ${node.node}`}
      tabIndex={-1}
      style={{ position: "absolute", top: 0, left: 0, right: 0, transform: `translateY(${top}px)` }}
    >
      <span>
        {tasks.error
          ? `The tasks could not be read: ${tasks.error.message}`
          : tasks.loading
            ? "Reading tasks…"
            : `${count(tasks.items.length)} of ${count(total)}${status ? ` ${status}` : ""}, failed first, then slowest`}
      </span>
      {tasks.more && (
        <button type="button" className="link" onClick={() => change({ shown: tasks.open.shown + SHOWN_STEP })}>
          Show {SHOWN_STEP} more
        </button>
      )}
      {status && (
        <button type="button" className="link" onClick={() => change({ status: null })}>
          All {count(node.tasks)}
        </button>
      )}
      {filters
        .filter((s) => s !== status)
        .map((s) => (
          <button key={s} type="button" className="link hide-narrow" onClick={() => change({ status: s })}>
            {sentenceCase(s)} {count(node.counts[s])}
          </button>
        ))}
    </div>
  );
}
