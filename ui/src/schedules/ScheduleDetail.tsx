/** One schedule: its days at their real length, its next fires, its past ones. */

import { Link } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { duration } from "../format/durations";
import { Actor } from "../parts/Actor";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { MenuButton, type MenuItem } from "../parts/Menu";
import { Failed, Skeleton } from "../parts/states";
import { useNow } from "../parts/Time";
import { useGo } from "../shell/url";
import { DayStrips } from "./DayStrips";
import { FIRES_SHOWN, type Schedule, specOf, useDurations, useFires, useTimes } from "./data";
import { type Fire, lateness, outcomeOf, outcomeWord, summary } from "./fires";
import { ScheduleForm } from "./ScheduleForm";
import { OutcomeMark, useSwitch } from "./ScheduleTable";
import { clockNotes, nextFires, whenWords } from "./when";
import { clockText, dayText, gapText, knownZone, offsetText } from "./zones";

const NEXT_SHOWN = 9;
const BAR_PX = 60;

export function ScheduleDetail({ schedule, onBackfill }: { schedule: Schedule; onBackfill: () => void }) {
  const spec = specOf(schedule);
  const zone = knownZone(spec.tz ?? "UTC");
  const now = useNow(true, 15_000);
  const times = useTimes(schedule.name, schedule.next_at);
  const fires = useFires(schedule.name);
  const past = fires.data ?? [];
  const isPaused = schedule.state === "paused";
  const future = (times.data ?? []).filter((at) => at > now);
  const notes = useMemo(() => clockNotes({ ...spec, tz: zone }, Date.now()), [spec, zone]);
  const last = past.find((f) => f.how !== "trigger");
  const when = whenWords(spec);
  return (
    <div className="sd scroll">
      {schedule.error && (
        <div className="failed sched-error" role="alert">
          <Icon name="warn" />
          <div>
            <b>The last time could not be fired</b>
            <p>{schedule.error}</p>
          </div>
        </div>
      )}
      <section className="card" aria-label="Next fires, by day">
        <header>
          <h2 className="grow clip">
            {schedule.name}{" "}
            <span className="faint">
              {when.words}, {spec.tz ?? "UTC"}
            </span>
          </h2>
          <Acts schedule={schedule} onBackfill={onBackfill} />
        </header>
        {times.error ? (
          <Failed error={times.error} retry={() => void times.refetch()} />
        ) : (
          <DayStrips zone={zone} now={now} past={past} next={future} isPaused={isPaused} />
        )}
        <PausedNote schedule={schedule} />
        {notes.length > 0 && (
          <p className="callout">
            <Icon name="warn" size={14} />
            <span>{notes.join(" ")}</span>
          </p>
        )}
      </section>
      <section className="card fires" aria-label="Next fires">
        <header>
          <h2 className="grow">Next fires</h2>
          <span className="faint card-note">{isPaused ? "once it is resumed" : "local and UTC"}</span>
        </header>
        <NextTable
          fires={nextFires(
            zone,
            future.slice(0, NEXT_SHOWN),
            last ? Date.parse(last.nominal_at) : null,
            now,
            offsetText,
          )}
          state={schedule.state}
        />
      </section>
      <PastFires schedule={schedule} fires={past} error={fires.error} isPending={fires.isPending} />
    </div>
  );
}

function PausedNote({ schedule }: { schedule: Schedule }) {
  if (!schedule.paused) return null;
  return (
    <p className="callout">
      <Icon name="pause" size={14} />
      <span>
        Paused by <Actor subject={schedule.paused.by} />
        {schedule.paused.reason ? `: ${schedule.paused.reason}` : ""}. Times that pass meanwhile are not made up for; a
        backfill does that.
      </span>
    </p>
  );
}

function NextTable({ fires, state }: { fires: ReturnType<typeof nextFires>; state: Schedule["state"] }) {
  if (fires.length === 0)
    return <p className="faint card-empty">{state === "over" ? "None: it is over." : "None was found."}</p>;
  return (
    <table className="grid">
      <thead>
        <tr>
          <th>Local</th>
          <th>Offset</th>
          <th>UTC</th>
          <th className="num">After</th>
        </tr>
      </thead>
      <tbody>
        {fires.map((fire) => (
          <tr key={fire.at} className={fire.odd ? "dst" : undefined}>
            <td>
              {fire.local}
              {fire.note && <span className="faint"> {fire.note}</span>}
            </td>
            <td className="mono muted">{fire.offset}</td>
            <td className="muted">{fire.utc}</td>
            <td className={`num ${fire.odd && !fire.note ? "late" : "muted"}`}>
              {fire.gap === null ? "–" : gapText(fire.gap)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function PastFires(props: { schedule: Schedule; fires: Fire[]; error: Error | null; isPending: boolean }) {
  const durations = useDurations(props.schedule.name).data ?? new Map<string, number>();
  const zone = knownZone(specOf(props.schedule).tz ?? "UTC");
  const shown = [...props.fires].reverse();
  const longest = Math.max(1e-3, ...shown.map((f) => durations.get(f.run_id ?? "") ?? 0));
  return (
    <section className="card past" aria-label="Past fires">
      <header>
        <h2 className="grow">Past {FIRES_SHOWN} fires</h2>
        <span className="faint card-note clip">{summary(props.fires, durations)}</span>
      </header>
      {props.error ? (
        <Failed error={props.error} />
      ) : props.isPending ? (
        <Skeleton rows={2} />
      ) : shown.length === 0 ? (
        <p className="faint card-empty">It has not fired yet.</p>
      ) : (
        <div className="bars">
          {shown.map((fire, n) => (
            <Bar
              key={`${fire.nominal_at}${fire.how}${fire.at}`}
              fire={fire}
              zone={zone}
              took={fire.run_id ? (durations.get(fire.run_id) ?? null) : null}
              longest={longest}
              label={isLabelled(n, shown, zone)}
            />
          ))}
        </div>
      )}
    </section>
  );
}

/** The first, then every fifth as counted from the newest. */
function isLabelled(n: number, shown: Fire[], zone: string): string {
  const left = shown.length - 1 - n;
  if (left % 5 !== 0 && n !== 0) return "";
  if (n !== 0 && n < 3) return "";
  const first = Date.parse(shown[0]?.nominal_at as string);
  const last = Date.parse(shown.at(-1)?.nominal_at as string);
  const at = Date.parse(shown[n]?.nominal_at as string);
  return last - first < 2 * 86_400_000 ? clockText(zone, at) : dayText(zone, at).replace(/^\w+ /, "");
}

function Bar(props: { fire: Fire; zone: string; took: number | null; longest: number; label: string }) {
  const { fire, took } = props;
  const outcome = outcomeOf(fire);
  const late = lateness(fire);
  const at = Date.parse(fire.nominal_at);
  const title = [
    `${dayText(props.zone, at)} ${clockText(props.zone, at)}`,
    outcomeWord(outcome),
    took === null ? "" : duration(took),
    late === null ? (fire.how === "fired" ? "" : fire.how) : `started ${duration(late)} late`,
  ]
    .filter(Boolean)
    .join(", ");
  const kind = ["success", "failed", "cancelled", "running", "pending"].includes(outcome) ? outcome : "none";
  const height =
    took === null ? (outcome === "running" ? BAR_PX / 3 : 3) : Math.max(3, (took / props.longest) * BAR_PX);
  const inside = (
    <>
      <i className={`col ${kind}`} style={{ height }} />
      <OutcomeMark fire={fire} />
      <small>{props.label}</small>
    </>
  );
  if (!fire.run_id || outcome === "gone")
    return (
      <span className="bar" title={title} role="img" aria-label={title}>
        {inside}
      </span>
    );
  return (
    <Link to={`/runs/${fire.run_id}` as never} title={title} aria-label={title}>
      {inside}
    </Link>
  );
}

function Acts({ schedule, onBackfill }: { schedule: Schedule; onBackfill: () => void }) {
  const { may } = useSession();
  const go = useGo();
  const [dialog, setDialog] = useState<"pause" | "edit" | "delete" | null>(null);
  const { name } = schedule;
  const trigger = useAct({
    act: () => body(api.POST("/api/v1/schedules/{name}/trigger", { params: { path: { name } } })),
    said: () => `${name} triggered`,
    refresh: [["schedule-fires", name]],
    onDone: (answer) => go(`/runs/${answer.run_id}`),
  });
  const resume = useSwitch(name);
  const isOwn = !schedule.origin.startsWith("flow:");
  const items: (MenuItem | "-")[] = [{ label: "Show its runs", icon: "runs", onSelect: () => go(runsOf(name)) }];
  if (may("operate")) items.push({ label: "Backfill…", icon: "retry", onSelect: onBackfill });
  if (may("develop") && isOwn)
    items.push({ label: "Edit…", icon: "gear", onSelect: () => setDialog("edit") }, "-", {
      label: "Delete…",
      icon: "x",
      danger: true,
      onSelect: () => setDialog("delete"),
    });
  if (!isOwn) items.push("-", { label: `Defined by ${schedule.origin.replace(":", " ")}`, disabled: true });
  return (
    <>
      {may("operate") && (
        <>
          <button type="button" className="btn ghost sm" onClick={() => trigger.mutate()} disabled={trigger.isPending}>
            <Icon name="play" size={14} />
            {trigger.isPending ? "Triggering…" : "Trigger now"}
          </button>
          {schedule.state === "paused" ? (
            <button
              type="button"
              className="btn ghost sm"
              onClick={() => resume.mutate(true)}
              disabled={resume.isPending}
            >
              <Icon name="play" size={14} />
              {resume.isPending ? "Resuming…" : "Resume"}
            </button>
          ) : (
            schedule.state === "active" && (
              <button type="button" className="btn ghost sm" onClick={() => setDialog("pause")}>
                <Icon name="pause" size={14} />
                Pause
              </button>
            )
          )}
        </>
      )}
      <span className="inline-menu">
        <MenuButton label={`More about ${name}`} className="btn ghost icon sm" menuClassName="right-menu" items={items}>
          <Icon name="more" size={14} />
        </MenuButton>
      </span>
      {dialog === "pause" && <PauseDialog name={name} onClose={() => setDialog(null)} />}
      {dialog === "delete" && <DeleteDialog name={name} onClose={() => setDialog(null)} />}
      {dialog === "edit" && <ScheduleForm schedule={schedule} onClose={() => setDialog(null)} onSaved={() => {}} />}
    </>
  );
}

function runsOf(name: string): string {
  return `/runs?q=${encodeURIComponent(`attr.schedule = ${JSON.stringify(name)}`)}`;
}

function PauseDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const act = useAct({
    act: () => body(api.POST("/api/v1/schedules/{name}/pause", { params: { path: { name } }, body: { reason } })),
    said: () => `${name} paused`,
    refresh: [["schedules"]],
    onDone: onClose,
    inForm: true,
  });
  return (
    <FormDialog
      title={`Pause ${name}`}
      submit={`Pause ${name}`}
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">It fires nothing until it is resumed. Active runs continue.</p>
      <label className="field">
        <span>
          Reason <span className="faint">optional, shown with the schedule</span>
        </span>
        <input className="input" value={reason} maxLength={1000} onChange={(event) => setReason(event.target.value)} />
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}

function DeleteDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const act = useAct({
    act: () => api.DELETE("/api/v1/schedules/{name}", { params: { path: { name } } }),
    said: () => `${name} deleted`,
    refresh: [["schedules"]],
    onDone: onClose,
    inForm: true,
  });
  return (
    <FormDialog
      title={`Delete ${name}`}
      submit={`Delete ${name}`}
      danger
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p>It fires no more. Active runs continue, and past fires stay on record.</p>
      <ActError error={act.error} />
    </FormDialog>
  );
}
