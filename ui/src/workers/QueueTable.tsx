import { useState } from "react";
import { useSession } from "../api/session";
import { duration } from "../format/durations";
import { count, rate } from "../format/numbers";
import { PauseDialog, useResume } from "../limits/parts";
import { Icon } from "../parts/icons";
import { ageClass, inRate, type Queue, type Sample, trend } from "./queues";

const SPARK = { width: 76, height: 20 };

export function QueueTable({ queues, samples }: { queues: Queue[]; samples: Sample[] }) {
  const { may } = useSession();
  if (queues.length === 0) return <p className="faint sec-empty">No task waits or runs, and no worker is connected.</p>;
  return (
    <table className="grid queue-table" aria-label="Queues">
      <thead>
        <tr>
          <th>Queue</th>
          <th className="num">Depth</th>
          <th title="Since this page was opened, at most an hour">Last hour</th>
          <th className="num">Oldest</th>
          <th>Slots</th>
          <th className="num">In / s</th>
          <th className="num">Out / s</th>
          {may("operate") && (
            <th>
              <span className="sr">Acts</span>
            </th>
          )}
        </tr>
      </thead>
      <tbody>
        {queues.map((queue) => (
          <Row key={queue.name} queue={queue} samples={samples} mayPause={may("operate")} />
        ))}
      </tbody>
    </table>
  );
}

function Row({ queue, samples, mayPause }: { queue: Queue; samples: Sample[]; mayPause: boolean }) {
  const coming = inRate(samples, queue.name, queue.out);
  const isBehind = queue.depth > 0 && coming !== null && queue.out < coming * 0.98;
  const tasks = queue.tasks
    .map((t) => `${t.task}: ${count(t.pending)} pending, ${count(t.running)} running`)
    .join("\n");
  return (
    <tr title={tasks || undefined}>
      <td className="strong">
        {queue.name}
        {queue.paused !== null && (
          <span className="tag attention queue-tag" title={queue.paused || undefined}>
            paused
          </span>
        )}
      </td>
      <td className="num">
        {count(queue.depth)}
        {queue.tasks.some((t) => t.pending >= 10_000) && "+"}
      </td>
      <td className="spark-cell">
        <Spark values={trend(samples, queue.name)} label={`Depth of ${queue.name}`} />
      </td>
      <td className={`num ${ageClass(queue)}`}>
        {queue.depth > 0 && queue.oldest !== null ? duration(queue.oldest) : "–"}
      </td>
      <td>
        {queue.workers === 0 ? <span className="very">no worker</span> : <Slots used={queue.used} all={queue.slots} />}
      </td>
      <td className="num muted">{coming === null ? "–" : rate(coming)}</td>
      <td className={`num ${isBehind ? "late" : "muted"}`}>{rate(queue.out)}</td>
      {mayPause && (
        <td className="acts-cell">
          <PauseButton queue={queue} />
        </td>
      )}
    </tr>
  );
}

export function Slots({ used, all }: { used: number; all: number }) {
  return (
    <div className="slots">
      <span className="track">
        <i
          className={used >= all ? "full" : undefined}
          style={{ width: `${all > 0 ? Math.min(100, (used / all) * 100) : 0}%` }}
        />
      </span>
      <span>
        {count(used)} of {count(all)}
      </span>
    </div>
  );
}

function Spark({ values, label }: { values: number[]; label: string }) {
  const { width, height } = SPARK;
  const shown = values.length === 1 ? [values[0] as number, values[0] as number] : values;
  if (shown.length === 0) return <span className="faint">–</span>;
  const top = Math.max(4, ...shown);
  const points = shown
    .map((v, n) => `${((n / (shown.length - 1)) * width).toFixed(1)},${(height - (v / top) * (height - 2)).toFixed(1)}`)
    .join(" ");
  return (
    <svg
      className="spark"
      viewBox={`0 0 ${width} ${height}`}
      role="img"
      aria-label={`${label}: ${shown.at(-1)} now, ${Math.max(...shown)} at most`}
    >
      <polygon points={`0,${height} ${points} ${width},${height}`} fill="var(--pending-soft)" />
      <polyline points={points} fill="none" stroke="var(--text-3)" strokeWidth="1.25" />
    </svg>
  );
}

function PauseButton({ queue }: { queue: Queue }) {
  const [isAsking, setAsking] = useState(false);
  const what = { scope: "queue" as const, name: queue.name };
  const resume = useResume(what);
  if (queue.paused !== null)
    return (
      <button
        type="button"
        className="btn ghost icon sm"
        aria-label={`Resume queue ${queue.name}`}
        title={`Resume queue ${queue.name}`}
        disabled={resume.isPending}
        onClick={() => resume.mutate()}
      >
        <Icon name="play" size={14} />
      </button>
    );
  return (
    <>
      <button
        type="button"
        className="btn ghost icon sm"
        aria-label={`Pause queue ${queue.name}`}
        title={`Pause queue ${queue.name}`}
        onClick={() => setAsking(true)}
      >
        <Icon name="pause" size={14} />
      </button>
      {isAsking && <PauseDialog what={what} onClose={() => setAsking(false)} />}
    </>
  );
}
