/** Three charts of the last 30 days; each opens the runs behind it. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { duration } from "../format/durations";
import { shortVersion } from "../format/ids";
import { count, percent } from "../format/numbers";
import { ms } from "../format/times";
import { Icon } from "../parts/icons";
import { Failed, Skeleton } from "../parts/states";
import { areaPath, type Box, bars, changeSince, linePath, median, ticks, topOf, x } from "./chartScale";
import { runsHref, STATS_DAYS, useStats, type WorkflowStats } from "./data";

const BOX: Box = { width: 300, height: 86 };
const dayFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

export function Charts({ name }: { name: string }) {
  const stats = useStats(name);
  if (stats.error && !stats.data) return <Failed error={stats.error} retry={() => void stats.refetch()} />;
  if (!stats.data)
    return (
      <div className="charts">
        {[0, 1, 2].map((n) => (
          <div className="card chart empty-chart" key={n}>
            <Skeleton rows={3} height={44} />
          </div>
        ))}
      </div>
    );
  return (
    <div className="charts">
      <Throughput name={name} stats={stats.data} />
      <Durations name={name} stats={stats.data} />
      <Failures name={name} stats={stats.data} />
    </div>
  );
}

interface Given {
  name: string;
  stats: WorkflowStats;
}

const since = `created > -${STATS_DAYS}d`;

function Throughput({ name, stats }: Given) {
  const values = stats.days.map((d) => d.started);
  const today = values.at(-1) ?? 0;
  const usual = median(values.slice(0, -1));
  const top = topOf(values);
  return (
    <Chart
      title="Throughput, runs a day"
      big={count(today)}
      note={
        Math.max(...values, 0) === 0
          ? `none in ${values.length} days`
          : `today, typically ${count(Math.round(usual ?? 0))}`
      }
      href={runsHref(name, [since])}
      days={stats.days}
    >
      {bars(values, top, BOX).map((bar, n) => (
        <rect
          key={stats.days[n]?.day}
          {...bar}
          fill={n === values.length - 1 ? "var(--running-mark)" : "var(--success-quiet)"}
        />
      ))}
    </Chart>
  );
}

function Durations({ name, stats }: Given) {
  const p50 = stats.days.map((d) => d.p50_s);
  const p95 = stats.days.map((d) => d.p95_s);
  const top = topOf(p95, p50);
  const changes = versionChanges(stats);
  const latest = changes.at(-1);
  const slower = latest ? changeSince(p50, latest.at) : null;
  const parts = [`p95 ${duration(stats.p95_s)}`];
  if (slower !== null && latest)
    parts.push(
      `${Math.round(Math.abs(slower) * 100)} % ${slower > 0 ? "slower" : "faster"} since ${shortVersion(latest.version)}`,
    );
  return (
    <Chart
      title="Duration, p50 and p95"
      big={duration(stats.p50_s)}
      note={stats.p95_s === null ? "no run has succeeded yet" : parts.join(", ")}
      tone={slower === null ? "muted" : slower > 0 ? "up" : "ok"}
      href={runsHref(name, ["status = success", since])}
      days={stats.days}
    >
      <path d={areaPath(p95, p50, top, BOX)} fill="var(--running-soft)" />
      <Line d={linePath(p95, top, BOX)} stroke="var(--running-mark)" dashed />
      <Line d={linePath(p50, top, BOX)} stroke="var(--running-text)" />
      {changes.map((change) => (
        <line
          key={change.version}
          className="version-mark"
          x1={edge(change.at, p50.length)}
          x2={edge(change.at, p50.length)}
          y1={0}
          y2={BOX.height}
          vectorEffect="non-scaling-stroke"
        >
          <title>{`${change.version} since ${dayName(stats.days[change.at]?.day)}`}</title>
        </line>
      ))}
    </Chart>
  );
}

function Failures({ name, stats }: Given) {
  const ended = (d: { success: number; failed: number }) => d.success + d.failed;
  const rates = stats.days.map((d) => (ended(d) > 0 ? d.failed / ended(d) : null));
  const failed = stats.days.reduce((n, d) => n + d.failed, 0);
  const all = stats.days.reduce((n, d) => n + ended(d), 0);
  const today = stats.days.at(-1);
  const top = Math.min(topOf(rates), 1);
  return (
    <Chart
      title="Failure rate, runs"
      big={all > 0 ? percent(failed, all, failed / all < 0.1 ? 2 : 0).replace(/\.00 /, " ") : "–"}
      note={
        today && ended(today) > 0
          ? `${count(today.failed)} of ${count(ended(today))} today`
          : `${count(failed)} of ${count(all)} in ${STATS_DAYS} days`
      }
      href={runsHref(name, ["status = failed", since])}
      days={stats.days}
    >
      <path d={areaPath(rates, null, top, BOX)} fill="var(--failed-soft)" />
      <Line d={linePath(rates, top, BOX)} stroke="var(--failed-mark)" />
    </Chart>
  );
}

function Chart(props: {
  title: string;
  big: string;
  note: string;
  tone?: "muted" | "up" | "ok";
  href: string;
  days: WorkflowStats["days"];
  children: ReactNode;
}) {
  return (
    <Link to={props.href as never} className="card chart" title="Open these runs">
      <h2>
        <span className="grow">{props.title}</span>
        <Icon name="expand" size={12} />
      </h2>
      <div className="now">
        <b>{props.big}</b>
        <span className={`clip ${props.tone ?? "muted"}`}>{props.note}</span>
      </div>
      <svg viewBox={`0 0 ${BOX.width} ${BOX.height}`} preserveAspectRatio="none" aria-hidden="true">
        {[0, BOX.height / 2, BOX.height].map((at) => (
          <line key={at} x1={0} x2={BOX.width} y1={at} y2={at} stroke="var(--line)" vectorEffect="non-scaling-stroke" />
        ))}
        {props.children}
      </svg>
      <div className="axis" aria-hidden="true">
        {ticks(props.days.length).map((n) => (
          <span key={n}>{n === props.days.length - 1 ? "today" : dayName(props.days[n]?.day)}</span>
        ))}
      </div>
    </Link>
  );
}

function Line({ d, stroke, dashed = false }: { d: string; stroke: string; dashed?: boolean }) {
  return (
    <path
      d={d}
      fill="none"
      stroke={stroke}
      strokeWidth={1.75}
      strokeDasharray={dashed ? "4 3" : undefined}
      strokeLinejoin="round"
      vectorEffect="non-scaling-stroke"
    />
  );
}

/** The left edge of a day's column. */
function edge(n: number, days: number): number {
  return x(n, days, BOX) - BOX.width / days / 2;
}

function dayName(day: string | undefined): string {
  return day ? dayFormat.format(Date.parse(`${day}T00:00:00Z`)) : "";
}

/** Versions that came within these days, by the index of the day. The first of all is no change. */
function versionChanges(stats: WorkflowStats): { version: string; at: number }[] {
  const known = [...stats.versions].sort((a, b) => ms(a.first_at) - ms(b.first_at)).slice(1);
  return known
    .map(({ version, first_at }) => ({ version, at: stats.days.findIndex((d) => d.day === first_at.slice(0, 10)) }))
    .filter((change) => change.at > 0);
}
