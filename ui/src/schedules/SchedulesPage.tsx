/** Schedules: what starts by the clock, what became of it, and when it comes next. */
import { useState } from "react";
import { useSession } from "../api/session";
import { count } from "../format/numbers";
import { Icon } from "../parts/icons";
import { showSelected } from "../parts/rows";
import { Empty, Failed, Skeleton } from "../parts/states";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useUrl } from "../shell/url";
import { BackfillDialog } from "./BackfillDialog";
import { useLiveFires, useSchedules } from "./data";
import { ScheduleDetail } from "./ScheduleDetail";
import { ScheduleForm } from "./ScheduleForm";
import { ScheduleTable } from "./ScheduleTable";
import "./schedules.css";

const CREATE = 'perdure schedule create nightly my_workflow --cron "0 8 * * *" --tz Europe/Paris';

export function SchedulesPage() {
  const url = useUrl();
  const { may } = useSession();
  const query = useSchedules();
  const [dialog, setDialog] = useState<"backfill" | "new" | null>(null);
  useLiveFires();
  const all = query.data?.pages.flatMap((page) => page.items) ?? [];
  const asked = url.get("name");
  const selected = all.find((s) => s.name === asked) ?? (asked ? undefined : (all.find((s) => !s.paused) ?? all[0]));
  const choose = (name: string) => url.set({ name });
  const step = (by: number) => {
    const at = all.findIndex((s) => s.name === selected?.name);
    const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
    if (!next) return;
    choose(next.name);
    showSelected();
  };
  useKeys({ j: () => step(1), k: () => step(-1) });
  const newButton = may("develop") && (
    <button type="button" className="btn primary" onClick={() => setDialog("new")}>
      <Icon name="plus" />
      New schedule
    </button>
  );
  return (
    <>
      <TopBar
        title="Schedules"
        beside={query.data && <span className="count">{shownCount(all.length, query.hasNextPage)}</span>}
      >
        {may("operate") && selected && (
          <button type="button" className="btn hide-narrow" onClick={() => setDialog("backfill")}>
            Backfill…
          </button>
        )}
        {newButton}
      </TopBar>
      {query.isPending ? (
        <Skeleton rows={7} />
      ) : query.error && all.length === 0 ? (
        <Failed error={query.error} retry={() => void query.refetch()} />
      ) : all.length === 0 ? (
        <Empty title="No schedules" command={CREATE} action={newButton}>
          A schedule starts runs by the clock: a cron expression in a time zone, an interval, or single moments. Code
          and the triggers of flows can define them too.
        </Empty>
      ) : (
        <div className={`split sched ${query.isError ? "stale" : ""}`}>
          <ScheduleTable
            schedules={all}
            selected={selected?.name ?? null}
            onSelect={choose}
            more={query.hasNextPage ? () => void query.fetchNextPage() : undefined}
          />
          {selected ? (
            <ScheduleDetail key={selected.name} schedule={selected} onBackfill={() => setDialog("backfill")} />
          ) : (
            <Empty title={`No schedule ${asked}`}>It was deleted, or it is on a later page of the list.</Empty>
          )}
        </div>
      )}
      {dialog === "backfill" && selected && <BackfillDialog schedule={selected} onClose={() => setDialog(null)} />}
      {dialog === "new" && <ScheduleForm onClose={() => setDialog(null)} onSaved={choose} />}
    </>
  );
}

function shownCount(n: number, more: boolean): string {
  return more ? `${count(n)}+` : count(n);
}
