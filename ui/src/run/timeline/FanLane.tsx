/** A fan-out of any size in one lane: how many were at work over time, failures at the foot. */
import { type MouseEvent, useMemo, useState } from "react";
import { count } from "../../format/numbers";
import { clock, ms } from "../../format/times";
import { binPath, coarser, type Expected } from "../boxes";
import { type Scale, timeAt, x } from "../scale";
import type { TimelineNode } from "../types";
import { ExpectedBox } from "./TimelineRow";

const HEIGHT = 46;
const FAILED_PX = 8;
const BAR_PX = 4;

export function FanLane(props: {
  node: TimelineNode;
  scale: Scale;
  width: number;
  now: number | null;
  expected: Expected | undefined;
}) {
  const { node, scale, width } = props;
  const given = node.bins;
  const paths = useMemo(() => {
    if (!given) return null;
    const from = ms(given.from);
    const end = from + given.running.length * given.bin_s * 1000;
    const bins = coarser(given, ((x(scale, end) - x(scale, from)) * width) / BAR_PX);
    const step = bins.bin_s * 1000;
    const most = Math.max(...bins.running, 1);
    const last = bins.running.length - 1;
    const growing = node.finished_at === null && (node.counts.running ?? 0) > 0;
    const before = growing ? bins.running.slice(0, last) : bins.running;
    return {
      most,
      work: binPath(before, from, step, scale, most, HEIGHT, width, 1),
      current: growing
        ? binPath([bins.running[last] ?? 0], from + last * step, step, scale, most, HEIGHT, width, 1)
        : "",
      failed: binPath(
        bins.failed.map((n) => Math.min(n, 1)),
        from,
        step,
        scale,
        1,
        FAILED_PX,
        width,
      ),
    };
  }, [given, scale, width, node.finished_at, node.counts.running]);
  const [title, setTitle] = useState("");
  const look = (event: MouseEvent<HTMLDivElement>) => {
    const bins = given;
    if (!bins) return;
    const box = event.currentTarget.getBoundingClientRect();
    const t = timeAt(scale, (event.clientX - box.left) / box.width);
    const k = Math.floor((t - ms(bins.from)) / (bins.bin_s * 1000));
    const [running, failed] = [bins.running[k], bins.failed[k]];
    setTitle(
      running === undefined ? "" : `${clock(t)}: ${count(running)} at work${failed ? `, ${count(failed)} failed` : ""}`,
    );
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: a tooltip; the panel tells the same
    <div className="tl-lane tl-fan" onMouseMove={look} title={title}>
      {paths && (
        <svg width={width} height={HEIGHT} viewBox={`0 0 ${width} ${HEIGHT}`} aria-hidden="true" style={{ left: 0 }}>
          <path d={paths.work} fill="var(--success-quiet)" />
          <path d={paths.current} fill="var(--running-mark)" />
          <path d={paths.failed} fill="var(--failed-mark)" transform={`translate(0 ${HEIGHT - FAILED_PX})`} />
        </svg>
      )}
      {paths && <Peak node={node} scale={scale} most={paths.most} />}
      {props.expected && <ExpectedBox expected={props.expected} scale={scale} />}
    </div>
  );
}

/** The most at once, where the lane has room for words: behind its last bar. */
function Peak({ node, scale, most }: { node: TimelineNode; scale: Scale; most: number }) {
  if (!node.bins) return null;
  const end = ms(node.bins.from) + node.bins.running.length * node.bins.bin_s * 1000;
  const at = x(scale, end);
  if (at > 0.86 || end < scale.from) return null;
  return (
    <span className="cap" style={{ left: `calc(${at * 100}% + 8px)` }}>
      {most === 1 ? "one at a time" : `up to ${count(most)} at once`}
    </span>
  );
}
