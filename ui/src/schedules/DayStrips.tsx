import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { isDense, notAgain, placeIn, shownDays, within } from "./days";
import { type Fire, outcomeOf, outcomeWord } from "./fires";
import { OutcomeMark } from "./ScheduleTable";
import { clockText, dayText, type ZoneDay } from "./zones";

const HOURS = [0, 3, 6, 9, 12, 15, 18, 21, 24];

/** Days as strips of real length: the day on which clocks go back is longer. */
export function DayStrips(props: { zone: string; now: number; past: Fire[]; next: number[]; isPaused: boolean }) {
  const { zone, now, past, next } = props;
  const days = useMemo(
    () =>
      shownDays(
        zone,
        now,
        past.map((f) => Date.parse(f.nominal_at)),
        next,
      ),
    [zone, now, past, next],
  );
  const longest = Math.max(24, ...days.map((d) => d.hours));
  return (
    <div className="days">
      <div className="hours" aria-hidden="true">
        {HOURS.map((hour) => (
          <span key={hour} style={{ left: `${(hour / longest) * 100}%` }}>
            {hour || "0 h"}
          </span>
        ))}
      </div>
      {days.map((day) => (
        <Day key={day.key} {...props} day={day} longest={longest} isDense={isDense(next)} />
      ))}
    </div>
  );
}

function Day(props: {
  zone: string;
  now: number;
  past: Fire[];
  next: number[];
  isPaused: boolean;
  day: ZoneDay;
  longest: number;
  isDense: boolean;
}) {
  const { zone, now, day } = props;
  const isToday = now >= day.start && now < day.end;
  const isOdd = day.hours !== 24;
  const label = dayText(zone, day.start, now);
  const percent = (at: number) => `${placeIn(day, at) * 100}%`;
  const done = props.past.filter((f) => within(day, [Date.parse(f.nominal_at)]).length > 0);
  // Of a busy schedule only what went wrong is marked; the rest would be one blot.
  const marked = props.isDense ? done.filter((f) => outcomeOf(f) === "failed") : done;
  return (
    <div className={`day ${isOdd ? "dst" : ""} ${isToday ? "today" : ""}`}>
      <span className="d">
        {label}
        {isOdd && `, ${day.hours} h`}
      </span>
      <div className="strip" style={{ width: `${(day.hours / props.longest) * 100}%` }}>
        {day.again && (
          <i
            className="again"
            style={{
              left: percent(day.again.from),
              width: `${((day.again.to - day.again.from) / (day.end - day.start)) * 100}%`,
            }}
            title={`${clockText(zone, day.again.from)} to ${clockText(zone, day.again.to)}, the second time`}
          />
        )}
        {day.leap && (
          <i
            className="leap"
            style={{ left: percent(day.leap.at) }}
            title={`Clocks go forward to ${clockText(zone, day.leap.at)}`}
          />
        )}
        {props.isDense && done.length > 1 && <PastBand fires={done} place={(at) => placeIn(day, at)} />}
        {props.isDense && !props.isPaused && day.end > now && props.next.length > 0 && (
          <i
            className="band"
            style={{ left: percent(Math.max(day.start, props.next[0] as number, now)), right: 0 }}
            title={`${label}: too many fires to draw each`}
          />
        )}
        {marked.map((fire) => (
          <PastMark
            key={`${fire.nominal_at}${fire.how}${fire.at}`}
            fire={fire}
            left={percent(Date.parse(fire.nominal_at))}
            zone={zone}
          />
        ))}
        {!props.isDense &&
          within(day, props.next).map((at) => (
            <i
              key={at}
              className={`fire ${props.isPaused ? "off" : ""}`}
              style={{ left: percent(at) }}
              title={`${label} ${clockText(zone, at)}${props.isPaused ? ", paused" : ""}`}
            />
          ))}
        {notAgain(day, props.next).map((at) => (
          <i
            key={at}
            className="fire no"
            style={{ left: percent(at) }}
            title={`${clockText(zone, at)} again, not fired`}
          />
        ))}
        {isToday && (
          <i className="nowline" style={{ left: percent(now) }} title={`now, ${clockText(zone, now).slice(0, 5)}`} />
        )}
      </div>
    </div>
  );
}

/** From the first to the last fire that is known. */
function PastBand({ fires, place }: { fires: Fire[]; place: (at: number) => number }) {
  const times = fires.map((fire) => Date.parse(fire.nominal_at));
  const [from, to] = [place(Math.min(...times)), place(Math.max(...times))];
  return (
    <i
      className="band done"
      style={{ left: `${from * 100}%`, width: `${(to - from) * 100}%` }}
      title={`${fires.length} fires; those that failed are marked`}
    />
  );
}

function PastMark({ fire, left, zone }: { fire: Fire; left: string; zone: string }) {
  const at = Date.parse(fire.nominal_at);
  const title = `${dayText(zone, at)} ${clockText(zone, at)}, ${outcomeWord(outcomeOf(fire))}`;
  if (!fire.run_id)
    return (
      <span className="pst" style={{ left }} title={title} role="img" aria-label={title}>
        <OutcomeMark fire={fire} />
      </span>
    );
  return (
    <Link className="pst" style={{ left }} to={`/runs/${fire.run_id}` as never} title={title} aria-label={title}>
      <OutcomeMark fire={fire} />
    </Link>
  );
}
