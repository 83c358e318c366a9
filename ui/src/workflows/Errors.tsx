/** What went wrong lately, grouped by cause. */
import { Link } from "@tanstack/react-router";
import { count } from "../format/numbers";
import { visible } from "../parts/Payload";
import { Failed, Skeleton } from "../parts/states";
import { Relative } from "../parts/Time";
import { ERROR_DAYS, type ErrorGroup, runsHref, useErrors } from "./data";

const SPARK = { width: 90, height: 18, step: 6, bar: 4 };

export function Errors({ name }: { name: string }) {
  const errors = useErrors(name);
  const found = errors.data;
  return (
    <section className="card" aria-label="Errors, grouped by cause">
      <header>
        <h2 className="grow">Errors, grouped by cause</h2>
        <span className="faint beside">
          {found?.capped ? `the newest ${count(found.scanned)} failed runs` : `last ${ERROR_DAYS} days`}
        </span>
      </header>
      {errors.error && !found && <Failed error={errors.error} retry={() => void errors.refetch()} />}
      {!found && !errors.error && <Skeleton rows={3} />}
      {found?.items.length === 0 && (
        <p className="quiet muted">No run of this workflow failed in the last {ERROR_DAYS} days.</p>
      )}
      {found && found.items.length > 0 && (
        <div className="scroll">
          <table className="grid errors">
            <thead>
              <tr>
                <th>Error</th>
                <th>Task</th>
                <th className="num">Times</th>
                <th>Last seen</th>
                <th>{ERROR_DAYS} days</th>
              </tr>
            </thead>
            <tbody>
              {found.items.map((group) => (
                <Group key={`${group.type}\n${group.message}\n${group.task}`} name={name} group={group} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Group({ name, group }: { name: string; group: ErrorGroup }) {
  const text = visible(group.message);
  const task = group.task ? `?${new URLSearchParams({ task: group.task })}` : "";
  return (
    <tr>
      <td title={`${group.type}: ${text}`}>
        <Link
          className="quiet-link"
          to={(group.sample_run ? `/runs/${group.sample_run}${task}` : runsHref(name, ["status = failed"])) as never}
        >
          <b className="strong">{group.type}</b>
          <span className="muted">: {text}</span>
        </Link>
      </td>
      <td className="mono">{group.task ?? "–"}</td>
      <td className="num">{count(group.count)}</td>
      <td className="muted">
        <Relative at={group.last_at} />
      </td>
      <td>
        <Spark values={group.days} />
      </td>
    </tr>
  );
}

/** A bar a day, the last one today. */
function Spark({ values }: { values: number[] }) {
  const most = Math.max(...values, 1);
  return (
    <svg
      className="spark"
      viewBox={`0 0 ${SPARK.width} ${SPARK.height}`}
      role="img"
      aria-label={`By day, the last today: ${values.join(", ")}`}
    >
      {values.map((value, n) => {
        const height = value ? Math.max((value / most) * SPARK.height, 1.5) : 0.8;
        return (
          <rect
            // biome-ignore lint/suspicious/noArrayIndexKey: days in order
            key={n}
            x={n * SPARK.step}
            y={SPARK.height - height}
            width={SPARK.bar}
            height={height}
            fill={value ? "var(--failed-mark)" : "var(--line-strong)"}
          />
        );
      })}
    </svg>
  );
}
