/** Flow control: what is limited, who holds it, who waits, and what is paused. */

import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api } from "../api/client";
import { useSession } from "../api/session";
import { count } from "../format/numbers";
import { Actor } from "../parts/Actor";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { TopBar } from "../shell/TopBar";
import { useLimits } from "./data";
import { LimitDialog } from "./LimitDialog";
import { HoldBar, HolderLink, heldText, type Pausable, useResume } from "./parts";
import { isFull, type LimitItem, type LimitRow, nameOf, pausedOf } from "./rows";
import "./limits.css";

const HOLDERS_SHOWN = 3;

export function LimitsPage() {
  const { may } = useSession();
  const { rules, uses, rows } = useLimits();
  const [editing, setEditing] = useState<LimitItem | "new" | null>(null);
  const [clearing, setClearing] = useState<LimitItem | null>(null);
  const paused = pausedOf(rules.data ?? []);
  const setButton = may("operate") && (
    <button type="button" className="btn primary" onClick={() => setEditing("new")}>
      <Icon name="plus" />
      Set limit
    </button>
  );
  return (
    <>
      <TopBar title="Limits" beside={rows && <span className="count">{count(rows.length)}</span>}>
        {setButton}
      </TopBar>
      <div className="scroll limits-page">
        {rules.error && !rules.data ? (
          <Failed error={rules.error} retry={() => void rules.refetch()} />
        ) : !rows ? (
          <Skeleton rows={6} />
        ) : rows.length === 0 && paused.length === 0 ? (
          <Empty
            title="Nothing is limited"
            command="perdure limit set queue/io --max 10 --rate 100/s"
            action={setButton}
          >
            A limit says how many tasks of a queue, a workflow or a task run at a time, or how many start within a time.
            Limits that code declares appear here while something holds them or waits for them.
          </Empty>
        ) : (
          <>
            <Answer rows={rows} paused={paused} />
            {paused.length > 0 && <PausedTable items={paused} />}
            {rows.length > 0 && <LimitTable rows={rows} onEdit={setEditing} onClear={setClearing} />}
            {uses.error && <Failed error={uses.error} retry={() => void uses.refetch()} />}
          </>
        )}
      </div>
      {editing && <LimitDialog item={editing === "new" ? undefined : editing} onClose={() => setEditing(null)} />}
      {clearing && <ClearDialog item={clearing} onClose={() => setClearing(null)} />}
    </>
  );
}

/** The sentence a person came for. */
function Answer({ rows, paused }: { rows: LimitRow[]; paused: LimitItem[] }) {
  const waiting = rows.filter((row) => row.waiting);
  const total = waiting.reduce((sum, row) => sum + (row.waiting ?? 0), 0);
  return (
    <p className="answer">
      {waiting.length === 0 ? (
        "Nothing waits for a limit."
      ) : (
        <>
          <b className="late">{count(total)}</b> {total === 1 ? "waits" : "wait"} for{" "}
          {waiting.map((row) => row.name).join(", ")}.
        </>
      )}
      {paused.length > 0 && ` ${paused.map(nameOf).join(", ")} ${paused.length === 1 ? "is" : "are"} paused.`}
    </p>
  );
}

function LimitTable(props: {
  rows: LimitRow[];
  onEdit: (item: LimitItem) => void;
  onClear: (item: LimitItem) => void;
}) {
  const { may } = useSession();
  return (
    <table className="grid limit-rows" aria-label="Limits">
      <thead>
        <tr>
          <th>Limit</th>
          <th>Of</th>
          <th>Kind</th>
          <th>Held by</th>
          <th className="num">Held</th>
          <th className="num">Waiting</th>
          <th>Runs that hold most</th>
          <th>Set</th>
          {may("operate") && (
            <th>
              <span className="sr">Acts</span>
            </th>
          )}
        </tr>
      </thead>
      <tbody>
        {props.rows.map((row) => (
          <tr key={row.id}>
            <td className="mono strong">
              <ScopeLink row={row} />
            </td>
            <td className="muted">{row.scope}</td>
            <td className="muted">{row.kind}</td>
            <td className="hold-cell">
              <HoldBar row={row} />
            </td>
            <td className={`num ${isFull(row) ? "late" : ""}`}>{heldText(row)}</td>
            <td className={`num ${row.waiting ? "late" : "muted"}`}>{count(row.waiting)}</td>
            <td>
              <Holders row={row} />
            </td>
            <td className="muted">
              {row.item?.updated_at ? (
                <span title={`by ${row.item.updated_by}`}>
                  <Time at={row.item.updated_at} />
                </span>
              ) : (
                "in code"
              )}
            </td>
            {may("operate") && (
              <td className="acts-cell">
                {row.item && (
                  <span className="row">
                    <button
                      type="button"
                      className="btn ghost sm"
                      aria-label={`Change the limits of ${row.name}`}
                      onClick={() => props.onEdit(row.item as LimitItem)}
                    >
                      Change
                    </button>
                    <button
                      type="button"
                      className="btn ghost sm"
                      aria-label={`Clear the limits of ${row.name}`}
                      onClick={() => props.onClear(row.item as LimitItem)}
                    >
                      Clear
                    </button>
                  </span>
                )}
              </td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function ScopeLink({ row }: { row: LimitRow }) {
  if (row.scope === "workflow" && row.item?.name)
    return (
      <Link className="link" to={`/workflows/${encodeURIComponent(row.item.name)}` as never}>
        {row.name}
      </Link>
    );
  if (row.scope === "queue")
    return (
      <Link className="link" to={"/workers" as never}>
        {row.name}
      </Link>
    );
  return <>{row.name}</>;
}

function Holders({ row }: { row: LimitRow }) {
  const [all, setAll] = useState(false);
  if (row.holders.length === 0) return <span className="faint">–</span>;
  const shown = all ? row.holders : row.holders.slice(0, HOLDERS_SHOWN);
  return (
    <span className="holders">
      {shown.map((holder) => (
        <HolderLink key={holder.run_id} holder={holder} />
      ))}
      {row.holders.length > HOLDERS_SHOWN && (
        <button type="button" className="link faint" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "fewer" : `${row.holders.length - HOLDERS_SHOWN} more`}
        </button>
      )}
    </span>
  );
}

function PausedTable({ items }: { items: LimitItem[] }) {
  const { may } = useSession();
  return (
    <section aria-label="Paused">
      <div className="sec">
        <h2>Paused</h2>
        <span className="count">{count(items.length)}</span>
      </div>
      <table className="grid" aria-label="Paused queues and workflows">
        <thead>
          <tr>
            <th>What</th>
            <th>Of</th>
            <th>Since</th>
            <th>By</th>
            <th>Reason</th>
            {may("operate") && (
              <th>
                <span className="sr">Acts</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {items.map((item) => (
            <tr key={`${item.scope}/${item.name}`}>
              <td className="mono strong">{nameOf(item)}</td>
              <td className="muted">{item.scope}</td>
              <td>
                <Time at={item.paused_at} />
              </td>
              <td className="muted">{item.paused_by && <Actor subject={item.paused_by} />}</td>
              <td className="clip reason-cell">{item.pause_reason || <span className="faint">–</span>}</td>
              {may("operate") && (
                <td className="acts-cell">
                  {item.name && <ResumeButton what={{ scope: item.scope as "queue", name: item.name }} />}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function ResumeButton({ what }: { what: Pausable }) {
  const act = useResume(what);
  return (
    <button
      type="button"
      className="btn sm"
      disabled={act.isPending}
      onClick={() => act.mutate()}
      aria-label={`Resume ${what.name}`}
    >
      {act.isPending ? "Resuming…" : "Resume"}
    </button>
  );
}

function ClearDialog({ item, onClose }: { item: LimitItem; onClose: () => void }) {
  const act = useAct({
    act: () =>
      api.DELETE("/api/v1/limits/{scope}/{name}", {
        params: { path: { scope: item.scope as "queue", name: item.name ?? "-" } },
      }),
    said: () => `The limits of ${nameOf(item)} are gone`,
    refresh: [["limits"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={`Clear the limits of ${nameOf(item)}`}
      submit="Clear limits"
      danger
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p>
        Work that waits for {item.scope === "namespace" ? "them" : `the ${item.scope} ${item.name}`} starts at once, as
        far as workers have slots. A pause stays.
      </p>
      <ActError error={act.error} />
    </FormDialog>
  );
}
