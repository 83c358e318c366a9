import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { count } from "../format/numbers";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { calendarWords } from "./calendarWords";

type Calendar = Schemas["CalendarDetail"];
const SHOWN = 200;
const EXAMPLE = `{
  "weekdays": ["sat", "sun"],
  "yearly": ["12-25"],
  "dates": ["2026-12-24"]
}`;

export function Calendars() {
  const { may } = useSession();
  const [editing, setEditing] = useState<Calendar | "new" | null>(null);
  const [deleting, setDeleting] = useState<Calendar | null>(null);
  const query = useQuery({
    queryKey: ["calendars"],
    queryFn: () => body(api.GET("/api/v1/calendars", { params: { query: { limit: SHOWN } } })),
    select: (page) => page.items,
  });
  return (
    <section className="card" aria-label="Calendars">
      <header>
        <h2 className="grow">Calendars {query.data && <span className="count">{count(query.data.length)}</span>}</h2>
        {may("develop") && (
          <button type="button" className="btn sm" onClick={() => setEditing("new")}>
            <Icon name="plus" size={14} />
            New calendar
          </button>
        )}
      </header>
      {query.error ? (
        <Failed error={query.error} retry={() => void query.refetch()} />
      ) : !query.data ? (
        <Skeleton rows={2} />
      ) : query.data.length === 0 ? (
        <p className="faint card-empty">
          None. Schedules fire only on, or never on, the days of a calendar:{" "}
          <code>perdure calendar set holidays --yearly 12-25</code>
        </p>
      ) : (
        <div className="table-scroll">
          <table className="grid" aria-label="Calendars">
            <thead>
              <tr>
                <th>Calendar</th>
                <th>Days</th>
                <th>Changed</th>
                {may("develop") && (
                  <th>
                    <span className="sr">Acts</span>
                  </th>
                )}
              </tr>
            </thead>
            <tbody>
              {query.data.map((calendar) => (
                <tr key={calendar.name}>
                  <td className="strong">{calendar.name}</td>
                  <td className="muted clip days-cell" title={JSON.stringify(calendar.spec)}>
                    {calendarWords(calendar.spec)}
                  </td>
                  <td className="muted" title={`by ${calendar.updated_by}`}>
                    <Time at={calendar.updated_at} />
                  </td>
                  {may("develop") && (
                    <td className="acts-cell">
                      <span className="row">
                        <button
                          type="button"
                          className="btn ghost sm"
                          aria-label={`Edit ${calendar.name}`}
                          onClick={() => setEditing(calendar)}
                        >
                          Edit…
                        </button>
                        <button
                          type="button"
                          className="btn ghost sm"
                          aria-label={`Delete ${calendar.name}`}
                          onClick={() => setDeleting(calendar)}
                        >
                          Delete…
                        </button>
                      </span>
                    </td>
                  )}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {editing && <EditDialog calendar={editing === "new" ? undefined : editing} onClose={() => setEditing(null)} />}
      {deleting && <DeleteDialog name={deleting.name} onClose={() => setDeleting(null)} />}
    </section>
  );
}

function EditDialog({ calendar, onClose }: { calendar?: Calendar; onClose: () => void }) {
  const [name, setName] = useState(calendar?.name ?? "");
  const [text, setText] = useState(calendar ? JSON.stringify(calendar.spec, null, 2) : EXAMPLE);
  const act = useAct({
    act: () =>
      body(
        api.PUT("/api/v1/calendars/{name}", {
          params: { path: { name: name.trim() } },
          body: JSON.parse(text) as Schemas["PutCalendarRequest"],
        }),
      ),
    said: (saved) => `Calendar ${saved.name} saved`,
    refresh: [["calendars"], ["schedules"], ["schedule-times"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={calendar ? `Edit ${calendar.name}` : "New calendar"}
      submit="Save calendar"
      busy={act.isPending}
      disabled={!name.trim()}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">Schedules that use it find their next time anew.</p>
      {!calendar && (
        <label className="field">
          <span>Name</span>
          <input className="input" value={name} onChange={(event) => setName(event.target.value)} spellCheck={false} />
        </label>
      )}
      <label className="field">
        <span>Days</span>
        <textarea
          className="input mono"
          rows={9}
          value={text}
          onChange={(event) => setText(event.target.value)}
          spellCheck={false}
        />
        <small>
          dates, yearly (month-day), weekdays, ranges (first and last day); not: a calendar of days that are left out
        </small>
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}

function DeleteDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const act = useAct({
    act: () => api.DELETE("/api/v1/calendars/{name}", { params: { path: { name } } }),
    said: () => `Calendar ${name} deleted`,
    refresh: [["calendars"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={`Delete calendar ${name}`}
      submit={`Delete ${name}`}
      danger
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p>A calendar that a schedule uses cannot be deleted.</p>
      <ActError error={act.error} />
    </FormDialog>
  );
}
