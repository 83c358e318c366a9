import { useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { plural } from "../format/numbers";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { toast } from "../shell/toasts";
import { type Schedule, specOf } from "./data";
import { clockText, dayText, knownZone } from "./zones";

const TIMES_SHOWN = 200;

/** Runs for times that had none. The first press only asks what would start. */
export function BackfillDialog({ schedule, onClose }: { schedule: Schedule; onClose: () => void }) {
  const { name } = schedule;
  const [since, setSince] = useState("7d");
  const [until, setUntil] = useState("");
  const [found, setFound] = useState<Schemas["Backfill"] | null>(null);
  const ask = (dry_run: boolean) =>
    body(
      api.POST("/api/v1/schedules/{name}/backfill", {
        params: { path: { name } },
        body: { since: since.trim(), until: until.trim() || null, dry_run },
      }),
    );
  const look = useAct({ act: () => ask(true), inForm: true, onDone: setFound });
  const start = useAct({
    act: () => ask(false),
    inForm: true,
    refresh: [["schedule-fires", name]],
    onDone: (answer) => {
      toast(`${plural(answer.started, "run")} of ${name} started`);
      onClose();
    },
  });
  const change = (set: (value: string) => void) => (value: string) => {
    set(value);
    setFound(null);
  };
  return (
    <FormDialog
      title={`Backfill ${name}`}
      submit={found ? `Start ${plural(found.started, "run")}` : "Look first"}
      disabled={found !== null && found.started === 0}
      busy={look.isPending || start.isPending}
      onClose={onClose}
      onSubmit={() => (found ? start.mutate() : look.mutate())}
    >
      <p className="muted">
        Starts a run for each time of the schedule that had none. “Look first” shows which, and starts nothing.
      </p>
      <div className="sched-form">
        <Moment
          label="From"
          hint="A time with its zone, or how long ago: 7d, 2026-10-01T00:00:00Z"
          value={since}
          onChange={change(setSince)}
        />
        <Moment label="Until" hint="Not included; now if empty" value={until} onChange={change(setUntil)} />
      </div>
      {found && <Found found={found} zone={knownZone(specOf(schedule).tz ?? "UTC")} />}
      <ActError error={look.error ?? start.error} />
    </FormDialog>
  );
}

function Moment(props: { label: string; hint: string; value: string; onChange: (value: string) => void }) {
  return (
    <label className="field">
      <span>{props.label}</span>
      <input
        className="input mono"
        value={props.value}
        onChange={(event) => props.onChange(event.target.value)}
        spellCheck={false}
      />
      <small>{props.hint}</small>
    </label>
  );
}

function Found({ found, zone }: { found: Schemas["Backfill"]; zone: string }) {
  const had = found.times.length - found.started;
  return (
    <div className="preview" role="status">
      <p className="strong">
        {plural(found.started, "run")} would start
        {had > 0 && <span className="muted">; {plural(had, "time")} had a run already</span>}.
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <ul className="scroll backfill-times" tabIndex={0} aria-label="Times">
        {found.times.slice(0, TIMES_SHOWN).map((time) => {
          const at = Date.parse(time.nominal_at);
          return (
            <li key={time.nominal_at} className={time.exists ? "faint" : undefined}>
              <span>
                {dayText(zone, at, Date.now())} {clockText(zone, at)}
              </span>
              <span>{time.exists ? "has a run" : "starts"}</span>
            </li>
          );
        })}
        {found.times.length > TIMES_SHOWN && <li className="faint">and {found.times.length - TIMES_SHOWN} more</li>}
      </ul>
    </div>
  );
}
