/** Nodes as shapes: task, timer, child, approval, choice, fan-out. */
import type { ReactNode } from "react";
import { duration } from "../format/durations";
import { count, percent } from "../format/numbers";
import { IconIn, type IconName, MarkIn, type StatusWord } from "../parts/icons";
import { type Box, doneOf, type FlowNode, type NodeKind, ring, shownName, shownSub } from "./model";

const ICONS: Record<NodeKind, IconName> = {
  task: "play",
  fanout: "runs",
  timer: "clock",
  child: "flow",
  approval: "person",
  signal: "signal",
  promise: "wait",
  choice: "fork",
  group: "flow",
};

export function iconOfKind(kind: NodeKind): IconName {
  return ICONS[kind];
}

interface Drawn {
  node: FlowNode;
  box: Box;
}

export function Shape({ node, box }: Drawn): ReactNode {
  switch (node.kind) {
    case "timer":
      return <Card node={node} box={box} rx={box.h / 2} />;
    case "child":
      return (
        <>
          <Rect box={box} shift={4} className="box" />
          <Card node={node} box={box} />
        </>
      );
    case "approval":
      return <Hexagon node={node} box={box} />;
    case "choice":
      return <Diamond node={node} box={box} />;
    case "fanout":
      return <FanOut node={node} box={box} />;
    case "group":
      return <Group node={node} box={box} />;
    default:
      return <Card node={node} box={box} />;
  }
}

function Rect({ box, shift = 0, rx = 7, className }: { box: Box; shift?: number; rx?: number; className: string }) {
  return <rect className={className} x={box.x + shift} y={box.y + shift} width={box.w} height={box.h} rx={rx} />;
}

function Card({ node, box, rx = 7 }: Drawn & { rx?: number }) {
  return (
    <>
      <Rect box={box} rx={rx} className="box front" />
      <Lead node={node} box={box} />
      <Label node={node} box={box} x={box.x + 33} />
    </>
  );
}

function Lead({ node, box }: Drawn) {
  const at = { x: box.x + 11, y: box.y + box.h / 2 - 7, size: 14 };
  return node.status ? <MarkIn status={node.status} {...at} /> : <IconIn name={ICONS[node.kind]} {...at} />;
}

function Label({ node, box, x }: Drawn & { x: number }) {
  const middle = box.y + box.h / 2;
  const sub = shownSub(node);
  return (
    <>
      <text x={x} y={middle + (sub ? -3 : 4)} className="mono">
        {shownName(node)}
      </text>
      {sub && (
        <text x={x} y={middle + 12} className="sub">
          {sub}
        </text>
      )}
    </>
  );
}

function Hexagon({ node, box }: Drawn) {
  const { x, y, w, h } = box;
  const at = { x: x + 17, y: y + h / 2 - 8, size: 16 };
  return (
    <>
      <path
        className="box front"
        d={`M${x + 14} ${y}H${x + w - 14}L${x + w} ${y + h / 2}L${x + w - 14} ${y + h}H${x + 14}L${x} ${y + h / 2}Z`}
      />
      {node.status && node.status !== "pending" ? (
        <MarkIn status={node.status} {...at} size={14} />
      ) : (
        <IconIn name="person" {...at} />
      )}
      <Label node={node} box={box} x={x + 41} />
    </>
  );
}

function Diamond({ node, box }: Drawn) {
  const { x, y, w, h } = box;
  const [cx, cy] = [x + w / 2, y + h / 2];
  return (
    <>
      <path className="box front" d={`M${cx} ${y}L${x + w} ${cy}L${cx} ${y + h}L${x} ${cy}Z`} />
      {node.status ? (
        <MarkIn status={node.status} x={cx - 7} y={cy - 7} size={14} />
      ) : (
        <text x={cx} y={cy + 4} textAnchor="middle" className="big">
          ?
        </text>
      )}
      <text x={x + w + 8} y={cy + 4} className="mono">
        {shownName(node)}
      </text>
    </>
  );
}

function Group({ node, box }: Drawn) {
  return (
    <>
      <Rect box={box} rx={9} className="box front group" />
      {node.status ? (
        <MarkIn status={node.status} x={box.x + 12} y={box.y + 10} size={14} />
      ) : (
        <IconIn name="flow" x={box.x + 12} y={box.y + 10} size={14} />
      )}
      <text x={box.x + 33} y={box.y + 21} className="mono">
        {shownName(node)}
      </text>
      {node.sub && (
        <text x={box.x + 33 + shownName(node).length * 7.25 + 10} y={box.y + 21} className="sub">
          {shownSub(node)}
        </text>
      )}
    </>
  );
}

const RING_R = 28;
const RING = 2 * Math.PI * RING_R;
const BARS_H = 32;

/** A fan-out of any size is one node: ring for how far, histogram for how long, counts in words. */
function FanOut({ node, box }: Drawn) {
  const behind = [8, 4].map((shift) => <Rect key={shift} box={box} shift={shift} className="box" />);
  const rich = node.live && !!node.counts && !!node.tasks;
  return (
    <>
      {behind}
      <Rect box={box} className="box front" />
      {rich ? <Progress node={node} box={box} /> : <Lead node={node} box={box} />}
      {!rich && <Label node={node} box={box} x={box.x + 33} />}
    </>
  );
}

function Progress({ node, box }: Drawn) {
  const counts = node.counts ?? {};
  const total = node.tasks ?? 0;
  const [cx, cy, tx] = [box.x + 46, box.y + box.h / 2, box.x + 92];
  const circle = { cx, cy, r: RING_R, fill: "none", strokeWidth: 6 };
  return (
    <>
      <circle {...circle} stroke="var(--surface-3)" />
      {ring(counts, total).map((part) => (
        <circle
          key={part.status}
          {...circle}
          stroke={`var(--${part.status}-mark)`}
          strokeDasharray={`${Math.max(part.length * RING - 1, 1)} ${RING}`}
          strokeDashoffset={-part.from * RING}
          transform={`rotate(-90 ${cx} ${cy})`}
        />
      ))}
      <text x={cx} y={cy + 4.5} textAnchor="middle" className="big">
        {percent(doneOf(counts), total)}
      </text>
      <text x={tx} y={box.y + 25} className="mono big">
        {shownName(node)}
      </text>
      <text x={tx + shownName(node).length * 7.9 + 8} y={box.y + 25} className="sub">
        {`× ${count(total)}${node.sub ? `, ${shownSub(node)}` : ""}`}
      </text>
      {node.durations && <Bars durations={node.durations} x={tx} base={box.y + 68} />}
      <Counts counts={counts} x={tx} y={box.y + box.h} />
    </>
  );
}

function Bars({ durations, x, base }: { durations: NonNullable<FlowNode["durations"]>; x: number; base: number }) {
  const most = Math.max(...durations.bars, 1);
  return (
    <>
      {durations.bars.map((n, k) => (
        <rect
          // biome-ignore lint/suspicious/noArrayIndexKey: the bars of a histogram do not move
          key={k}
          x={x + k * 9}
          y={base - (n / most) * BARS_H}
          width={7}
          height={(n / most) * BARS_H}
          rx={1}
          fill={
            ((k + 0.5) / durations.bars.length) * durations.max_s > durations.p95_s
              ? "var(--attention-mark)"
              : "var(--success-mark)"
          }
        />
      ))}
      <line x1={x} x2={x + 144} y1={base + 0.5} y2={base + 0.5} stroke="var(--line-strong)" />
      <text x={x + 156} y={base - 18} className="sub">{`p50 ${duration(durations.p50_s)}`}</text>
      <text x={x + 156} y={base - 2} className="sub">{`p95 ${duration(durations.p95_s)}`}</text>
    </>
  );
}

const WORDS: StatusWord[] = ["success", "running", "failed", "dispatched", "pending", "skipped", "cancelled"];

function Counts({ counts, x, y }: { counts: Partial<Record<StatusWord, number>>; x: number; y: number }) {
  let at = x;
  const shown = WORDS.filter((status) => counts[status]).slice(0, 4);
  return shown.map((status) => {
    const text = `${count(counts[status])} ${status}`;
    const here = at;
    at += 24 + text.length * 6.1;
    return (
      <g key={status}>
        <MarkIn status={status} x={here} y={y - 22} size={11} />
        <text x={here + 15} y={y - 12.5} className="sub">
          {text}
        </text>
      </g>
    );
  });
}
