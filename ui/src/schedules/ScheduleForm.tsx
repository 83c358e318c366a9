/** A new schedule, or a change of one, with the times that it would fire at. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type ReactNode, useDeferredValue, useId, useState } from "react";
import { api, body } from "../api/client";
import { ActError, errorText, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { Segments } from "../parts/Tabs";
import type { Schedule } from "./data";
import { type Draft, draftOf, inputOf, requestOf, specOfDraft } from "./draft";
import { clockText, dayText, gapText, knownZone, offsetText } from "./zones";

const PREVIEWED = 5;
const ZONES = Intl.supportedValuesOf("timeZone");
const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const OVERLAPS = [
  ["skip", "skip: start nothing while an earlier run is active"],
  ["queue", "queue: start when the earlier run has ended"],
  ["cancel", "cancel: cancel the earlier run"],
  ["allow", "allow: run both"],
] as const;
const MISSED = [
  ["last", "last: the newest missed time"],
  ["all", "all: every missed time"],
  ["none", "none: nothing"],
] as const;

export function ScheduleForm(props: { schedule?: Schedule; onClose: () => void; onSaved: (name: string) => void }) {
  const { schedule } = props;
  const [draft, setDraft] = useState<Draft>(() => draftOf(schedule, HERE));
  const set = (change: Partial<Draft>) => setDraft({ ...draft, ...change });
  const input = inputOf(draft.input);
  const act = useAct({
    act: () => {
      if ("problem" in input) throw new Error(`The input is no JSON: ${input.problem}`);
      const request = requestOf(draft, schedule, input.value);
      const name = draft.name.trim();
      return schedule
        ? body(api.PUT("/api/v1/schedules/{name}", { params: { path: { name } }, body: request }))
        : body(api.POST("/api/v1/schedules", { body: { ...request, name } }));
    },
    said: (saved) => (schedule ? `${saved.name} saved` : `${saved.name} created`),
    refresh: [["schedules"], ["schedule-times", draft.name]],
    inForm: true,
    onDone: (saved) => {
      props.onSaved(saved.name);
      props.onClose();
    },
  });
  const title = schedule ? `Edit ${schedule.name}` : "New schedule";
  return (
    <FormDialog
      title={title}
      submit={schedule ? "Save schedule" : "Create schedule"}
      busy={act.isPending}
      disabled={!draft.name.trim() || !draft.workflow.trim()}
      onClose={props.onClose}
      onSubmit={() => act.mutate()}
    >
      <div className="sched-form">
        {!schedule && (
          <Text label="Name" value={draft.name} onChange={(name) => set({ name })} hint="Such as nightly" />
        )}
        <WorkflowField value={draft.workflow} onChange={(workflow) => set({ workflow })} />
        <TimeFields draft={draft} set={set} />
        <Preview draft={draft} />
        <Choice
          label="While an earlier run is active"
          value={draft.overlap}
          options={OVERLAPS}
          onChange={(overlap) => set({ overlap })}
        />
        <Choice
          label="After an outage, make up for"
          value={draft.missed}
          options={MISSED}
          onChange={(missed) => set({ missed })}
        />
        <label className="field all">
          <span>
            Input <span className="faint">JSON: an object has arguments by name</span>
          </span>
          <textarea
            className="input mono"
            rows={3}
            spellCheck={false}
            value={draft.input}
            aria-invalid={"problem" in input || undefined}
            onChange={(event) => set({ input: event.target.value })}
          />
          {"problem" in input && <small className="form-error">{input.problem}</small>}
        </label>
        <MoreFields draft={draft} set={set} />
      </div>
      <ActError error={act.error} />
    </FormDialog>
  );
}

type Set = (change: Partial<Draft>) => void;

function TimeFields({ draft, set }: { draft: Draft; set: Set }) {
  return (
    <>
      <div className="field">
        <span>When</span>
        <div>
          <Segments
            label="Kind of time"
            value={draft.kind}
            onChange={(kind) => set({ kind: kind as Draft["kind"] })}
            options={[
              { id: "cron", label: "Cron" },
              { id: "every", label: "Interval" },
              { id: "at", label: "Moments" },
            ]}
          />
        </div>
      </div>
      <ZoneField value={draft.tz} onChange={(tz) => set({ tz })} />
      {draft.kind === "cron" && (
        <Area
          label="Cron expression"
          hint="Minute, hour, day, month, weekday; several on lines of their own"
          value={draft.cron}
          onChange={(cron) => set({ cron })}
        />
      )}
      {draft.kind === "every" && (
        <Text
          label="Interval"
          hint="Such as 15m or 30s; clock changes do not move it"
          value={draft.every}
          onChange={(every) => set({ every })}
          mono
          all
        />
      )}
      {draft.kind === "at" && (
        <Area
          label="Moments"
          hint="2026-12-24T18:00 in the time zone, one on each line"
          value={draft.at}
          onChange={(at) => set({ at })}
        />
      )}
    </>
  );
}

function MoreFields({ draft, set }: { draft: Draft; set: Set }) {
  return (
    <details className="all">
      <summary>Calendars, bounds, jitter, timeout, version</summary>
      <div>
        <Text
          label="Only on days of"
          hint="Names of calendars"
          value={draft.calendars}
          onChange={(calendars) => set({ calendars })}
        />
        <Text
          label="Never on days of"
          hint="Names of calendars"
          value={draft.exclude}
          onChange={(exclude) => set({ exclude })}
        />
        <Text label="Not before" hint="A moment" value={draft.start} onChange={(start) => set({ start })} mono />
        <Text label="Until" hint="A moment, not included" value={draft.end} onChange={(end) => set({ end })} mono />
        <Text
          label="Jitter"
          hint="Each start is delayed by up to this: 30s"
          value={draft.jitter}
          onChange={(jitter) => set({ jitter })}
          mono
        />
        <Text
          label="Missed times reach back"
          hint="Such as 1h, the default"
          value={draft.window}
          onChange={(window) => set({ window })}
          mono
        />
        <Text
          label="Timeout of a run"
          hint="Such as 2h; none if empty"
          value={draft.timeout}
          onChange={(timeout) => set({ timeout })}
          mono
        />
        <Text
          label="Version"
          hint="The current one if empty"
          value={draft.version}
          onChange={(version) => set({ version })}
          mono
        />
      </div>
    </details>
  );
}

function Preview({ draft }: { draft: Draft }) {
  const spec = useDeferredValue(JSON.stringify(specOfDraft(draft)));
  const found = useQuery({
    queryKey: ["schedule-preview", spec],
    queryFn: () => body(api.POST("/api/v1/schedules/preview", { body: { spec: JSON.parse(spec), n: PREVIEWED } })),
    retry: false,
    placeholderData: keepPreviousData,
  });
  const zone = knownZone(draft.tz.trim() || "UTC");
  const times = found.data?.times.map((t) => Date.parse(t)) ?? [];
  return (
    <div className="preview all" role="status" aria-label="Next fires">
      {found.error ? (
        <span className="form-error">{errorText(found.error)}</span>
      ) : times.length === 0 && found.data ? (
        <span className="muted">It would never fire.</span>
      ) : (
        <ul>
          {times.map((at, n) => (
            <li key={at}>
              <span>
                {dayText(zone, at, Date.now())} {clockText(zone, at)}{" "}
                <span className="faint mono">{offsetText(zone, at)}</span>
              </span>
              <span className="faint">{n > 0 && `after ${gapText(at - (times[n - 1] as number))}`}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function WorkflowField({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const id = useId();
  const asked = useDeferredValue(value);
  const found = useQuery({
    queryKey: ["workflow-names", asked],
    queryFn: () => body(api.GET("/api/v1/workflows", { params: { query: { q: asked, limit: 20 } } })),
    placeholderData: keepPreviousData,
  }).data;
  return (
    <label className="field">
      <span>Workflow</span>
      <input
        className="input"
        list={id}
        value={value}
        onChange={(event) => onChange(event.target.value)}
        autoComplete="off"
        spellCheck={false}
      />
      <datalist id={id}>
        {found?.items.map((w) => (
          <option key={w.name} value={w.name} />
        ))}
      </datalist>
    </label>
  );
}

function ZoneField({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const id = useId();
  return (
    <label className="field">
      <span>Time zone</span>
      <input
        className="input"
        list={id}
        value={value}
        onChange={(event) => onChange(event.target.value)}
        autoComplete="off"
        spellCheck={false}
      />
      <datalist id={id}>
        {["UTC", ...ZONES].map((zone) => (
          <option key={zone} value={zone} />
        ))}
      </datalist>
    </label>
  );
}

function Text(props: {
  label: string;
  hint: ReactNode;
  value: string;
  onChange: (value: string) => void;
  mono?: boolean;
  all?: boolean;
}) {
  return (
    <label className={`field ${props.all ? "all" : ""}`}>
      <span>{props.label}</span>
      <input
        className={`input ${props.mono ? "mono" : ""}`}
        value={props.value}
        onChange={(event) => props.onChange(event.target.value)}
        spellCheck={false}
      />
      <small>{props.hint}</small>
    </label>
  );
}

function Area(props: { label: string; hint: string; value: string; onChange: (value: string) => void }) {
  return (
    <label className="field all">
      <span>{props.label}</span>
      <textarea
        className="input mono"
        rows={Math.min(5, Math.max(1, props.value.split("\n").length))}
        value={props.value}
        onChange={(event) => props.onChange(event.target.value)}
        spellCheck={false}
      />
      <small>{props.hint}</small>
    </label>
  );
}

function Choice(props: {
  label: string;
  value: string;
  options: readonly (readonly [string, string])[];
  onChange: (value: string) => void;
}) {
  return (
    <label className="field">
      <span>{props.label}</span>
      <select className="input" value={props.value} onChange={(event) => props.onChange(event.target.value)}>
        {props.options.map(([id, label]) => (
          <option key={id} value={id}>
            {label}
          </option>
        ))}
      </select>
    </label>
  );
}
