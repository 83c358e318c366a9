import { Link } from "@tanstack/react-router";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { wholeTime } from "../format/times";
import { Actor } from "../parts/Actor";
import { useAct } from "../parts/acts";
import { Icon, StatusMark } from "../parts/icons";
import { Relative, useNow } from "../parts/Time";
import { type Schedule, specOf, useFires } from "./data";
import { type Fire, outcomeOf, outcomesText, outcomeWord } from "./fires";
import { whenWords } from "./when";
import { clockText, dayOf, dayText, knownZone } from "./zones";

const MARKS = 16;
const HOUR = 3_600_000;

export function ScheduleTable(props: {
  schedules: Schedule[];
  selected: string | null;
  onSelect: (name: string) => void;
  more?: () => void;
}) {
  return (
    <div className="scroll sched-table">
      {/* biome-ignore lint/a11y/noNoninteractiveElementToInteractiveRole: its rows can be selected, which only a grid may have */}
      <table className="grid" role="grid" aria-label="Schedules">
        <thead>
          <tr>
            <th>
              <span className="sr">On</span>
            </th>
            <th>Schedule</th>
            <th>Workflow</th>
            <th>When</th>
            <th>Time zone</th>
            <th>Last fires, newest right</th>
            <th>Next</th>
            <th>Overlap</th>
          </tr>
        </thead>
        <tbody>
          {props.schedules.map((schedule) => (
            <Row
              key={schedule.name}
              schedule={schedule}
              isSelected={schedule.name === props.selected}
              onSelect={() => props.onSelect(schedule.name)}
            />
          ))}
        </tbody>
      </table>
      {props.more && (
        <button type="button" className="btn ghost sm" onClick={props.more}>
          More schedules
        </button>
      )}
    </div>
  );
}

function Row({ schedule, isSelected, onSelect }: { schedule: Schedule; isSelected: boolean; onSelect: () => void }) {
  const spec = specOf(schedule);
  const when = whenWords(spec);
  return (
    <tr
      aria-selected={isSelected}
      onClick={(event) => !(event.target as Element).closest("a,button,input") && onSelect()}
    >
      <td className="on">
        <OnSwitch schedule={schedule} />
      </td>
      <td className="strong">
        <button type="button" onClick={onSelect} aria-pressed={isSelected}>
          {schedule.name}
        </button>
      </td>
      <td>
        <Link className="link" to={`/workflows/${encodeURIComponent(schedule.workflow)}` as never}>
          {schedule.workflow}
        </Link>
      </td>
      <td>
        {when.words}
        {when.written && <span className="mono faint sched-when">{when.written}</span>}
      </td>
      <td className="muted">{spec.tz ?? "UTC"}</td>
      <td>
        <Outcomes name={schedule.name} />
      </td>
      <td>
        <Next schedule={schedule} />
      </td>
      <td className="muted">{spec.overlap ?? "skip"}</td>
    </tr>
  );
}

/** On or paused. It shows at once what was asked for. */
function OnSwitch({ schedule }: { schedule: Schedule }) {
  const { may } = useSession();
  const act = useSwitch(schedule.name);
  const isOn = act.isPending ? act.variables : schedule.state === "active";
  if (schedule.state === "over") return <span className="faint">–</span>;
  if (!may("operate")) return <span className="muted">{isOn ? "on" : "off"}</span>;
  return (
    <input
      type="checkbox"
      role="switch"
      className="switch"
      checked={isOn}
      aria-checked={isOn}
      aria-label={`${schedule.name} enabled`}
      title={isOn ? "On; switch off to pause" : "Paused; switch on to resume"}
      onChange={(event) => act.mutate(event.target.checked)}
    />
  );
}

export function useSwitch(name: string) {
  return useAct<boolean, Schedule>({
    act: (on) =>
      on
        ? body(api.POST("/api/v1/schedules/{name}/resume", { params: { path: { name } } }))
        : body(api.POST("/api/v1/schedules/{name}/pause", { params: { path: { name } }, body: { reason: "" } })),
    said: (_, on) => (on ? `${name} resumed` : `${name} paused`),
    refresh: [["schedules"]],
  });
}

function Outcomes({ name }: { name: string }) {
  const fires = useFires(name).data;
  if (!fires) return <span className="faint">–</span>;
  const shown = fires.slice(0, MARKS).reverse();
  return (
    <div className="marks" role="img" aria-label={outcomesText(shown)} title={outcomesText(shown)}>
      {Array.from({ length: MARKS - shown.length }, (_, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: places without a fire
        <span key={n} className="none">
          ·
        </span>
      ))}
      {shown.map((fire) => (
        <OutcomeMark key={`${fire.nominal_at}${fire.how}${fire.at}`} fire={fire} />
      ))}
    </div>
  );
}

export function OutcomeMark({ fire }: { fire: Fire }) {
  const outcome = outcomeOf(fire);
  if (outcome === "missed") return <Icon name="warn" size={12} />;
  if (outcome === "gone")
    return (
      <span className="none" title={outcomeWord(outcome)}>
        ·
      </span>
    );
  return <StatusMark status={outcome} />;
}

/** In the zone of the schedule, whose name is two columns to the left. */
function Next({ schedule }: { schedule: Schedule }) {
  const now = useNow(true, 10_000);
  if (schedule.paused)
    return (
      <span className="faint" title={schedule.paused.reason ?? undefined}>
        paused by <Actor subject={schedule.paused.by} />
      </span>
    );
  if (!schedule.next_at) return <span className="faint">over</span>;
  const at = Date.parse(schedule.next_at);
  if (at - now < HOUR) return <Relative at={at} />;
  return <time title={wholeTime(at)}>{nextText(knownZone(specOf(schedule).tz ?? "UTC"), at, now)}</time>;
}

function nextText(zone: string, at: number, now: number): string {
  const today = dayOf(zone, now);
  if (at < today.end) return `today ${clockText(zone, at)}`;
  if (at < dayOf(zone, today.end).end) return `tomorrow ${clockText(zone, at)}`;
  return `${dayText(zone, at, now)} ${clockText(zone, at)}`;
}
