/** Approvals: what people are asked to decide, by deadline. */
import { useState } from "react";
import { duration } from "../format/durations";
import { count } from "../format/numbers";
import { brief } from "../parts/Payload";
import { showSelected } from "../parts/rows";
import { Status } from "../parts/Status";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Segments } from "../parts/Tabs";
import { useNow } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { TopBar } from "../shell/TopBar";
import { useUrl } from "../shell/url";
import { ApprovalDetail } from "./ApprovalDetail";
import { DecidedInbox } from "./DecidedInbox";
import type { Shown } from "./DecisionForm";
import { OPEN_SHOWN, useApproval, useInbox, useOneApproval, useOpen, type Whose } from "./data";
import { layout, shownScalar } from "./details";
import { type Approval, type Entry, grouped, keyOf, SOON_MS } from "./inbox";
import "./approvals.css";

type Segment = Whose | "decided";

export function ApprovalsPage() {
  const url = useUrl();
  const asked = url.get("whose");
  const segment: Segment = asked === "all" || asked === "decided" ? asked : "me";
  const label = (text: string, id: Whose) => (
    <>
      {text} <OpenCount whose={id} />
    </>
  );
  return (
    <>
      <TopBar
        title="Approvals"
        beside={
          <Segments
            label="Whose"
            value={segment}
            onChange={(id) => url.set({ whose: id === "me" ? null : id, item: null, by: null })}
            options={[
              { id: "me", label: label("Awaiting me", "me") },
              { id: "all", label: label("All", "all") },
              { id: "decided", label: "Decided" },
            ]}
          />
        }
      />
      {segment === "decided" ? <DecidedInbox /> : <OpenInbox whose={segment} />}
    </>
  );
}

function OpenInbox({ whose }: { whose: Whose }) {
  const url = useUrl();
  const { query, entries, hasMore } = useInbox(whose);
  const now = useNow(true, 1000);
  const groups = grouped(entries, now);
  const order = [...groups.soon, ...groups.later];
  const asked = url.get("item");
  const selected = order.find((e) => keyOf(e.approval) === asked) ?? (asked ? undefined : order.find((e) => !e.gone));
  const choose = (entry: Entry | undefined) => entry && url.set({ item: keyOf(entry.approval) });
  const step = (by: number) => {
    const at = order.indexOf(selected as Entry);
    choose(order[Math.max(0, Math.min(order.length - 1, at + by))]);
    showSelected();
  };
  useKeys({ j: () => step(1), k: () => step(-1) });
  const items = (title: string, list: Entry[]) =>
    list.length > 0 && (
      <>
        <h2>{title}</h2>
        {list.map((entry) => (
          <Item
            key={keyOf(entry.approval)}
            entry={entry}
            now={now}
            isCurrent={entry === selected}
            onOpen={() => choose(entry)}
          />
        ))}
      </>
    );
  if (query.isPending) return <Skeleton rows={4} height={52} />;
  if (query.error && entries.length === 0) return <Failed error={query.error} retry={() => void query.refetch()} />;
  if (entries.length === 0 && !asked) return <Nothing whose={whose} onAll={() => url.set({ whose: "all" })} />;
  return (
    <div className={`split inbox ${query.isError ? "stale" : ""}`}>
      <nav className="items scroll" aria-label="Waiting for a decision">
        {items("Due soon", groups.soon)}
        {items(groups.soon.length > 0 ? "Later" : "Open", groups.later)}
        {hasMore && <p className="faint items-note">The oldest {OPEN_SHOWN} are shown.</p>}
      </nav>
      <div className="detail scroll">
        {selected ? (
          <Selected entry={selected} onNext={nextOpen(order, selected) && (() => choose(nextOpen(order, selected)))} />
        ) : asked ? (
          <ByAddress item={asked} />
        ) : (
          <Empty title="Nothing is left to decide">New approvals appear on the left by themselves.</Empty>
        )}
      </div>
    </div>
  );
}

function OpenCount({ whose }: { whose: Whose }) {
  const page = useOpen(whose).data;
  return page ? (
    <span className="count">{page.next ? `${count(page.items.length)}+` : count(page.items.length)}</span>
  ) : null;
}

function nextOpen(order: Entry[], from: Entry): Entry | undefined {
  const at = order.indexOf(from);
  return [...order.slice(at + 1), ...order.slice(0, at)].find((e) => !e.gone);
}

function Nothing({ whose, onAll }: { whose: Whose; onAll: () => void }) {
  if (whose === "all")
    return (
      <Empty title="No run waits for an approval" command="perdure approval list">
        A workflow asks with an <code>Approval</code> in code or an <code>approval:</code> step in a flow; the question
        then appears here with its form and its deadline.
      </Empty>
    );
  return (
    <Empty
      title="Nothing awaits you"
      command="perdure approval list --mine me"
      action={
        <button type="button" className="btn" onClick={onAll}>
          Show all approvals
        </button>
      }
    >
      Approvals that are assigned to you, or to anyone, appear here, the most urgent first.
    </Empty>
  );
}

function Item(props: { entry: Entry; now: number; isCurrent: boolean; onOpen: () => void }) {
  const { approval, gone } = props.entry;
  return (
    <button
      type="button"
      className={`item ${gone ? "gone" : ""}`}
      aria-current={props.isCurrent ? "true" : undefined}
      onClick={props.onOpen}
    >
      <b className={`clip ${gone ? "muted" : ""}`}>{approval.title}</b>
      {!gone && <TimeLeft approval={approval} now={props.now} />}
      {gone ? <Outcome entry={props.entry} /> : <span className="why clip">{about(approval)}</span>}
    </button>
  );
}

/** "refund-batch, release · Total 184,920.5" */
function about(approval: Approval): string {
  const facts = layout(approval.details).facts.slice(0, 2);
  const words = facts.map(([name, value]) => `${name} ${brief(shownScalar(value), 40)}`).join(", ");
  return `${approval.workflow}, ${approval.name}${words ? ` · ${words}` : ""}`;
}

export function TimeLeft({ approval, now }: { approval: Approval; now: number }) {
  if (!approval.deadline_at) return null;
  const left = Date.parse(approval.deadline_at) - now;
  const isSoon = left < SOON_MS;
  return (
    <span className={`left ${isSoon ? "soon" : ""}`}>
      {left <= 0 ? "expired" : isSoon ? `${duration(left / 1000)} left` : duration(left / 1000)}
    </span>
  );
}

function Outcome({ entry }: { entry: Entry }) {
  const found = useApproval(entry).data;
  return (
    <span className="why row">
      <StatusOf approval={found ?? entry.approval} isGone />
    </span>
  );
}

/** A run that has ended takes its approvals with it: then all that is known is that it is no longer open. */
export function StatusOf({ approval, isGone = false }: { approval: Approval; isGone?: boolean }) {
  switch (approval.status) {
    case "approved":
      return <Status status="success" word="Approved" />;
    case "rejected":
      return <Status status="failed" word="Rejected" />;
    case "expired":
      return <Status status="cancelled" word="Expired" />;
    case "resolved":
      return <Status status="skipped" word="Resolved without an answer" />;
    default:
      return isGone ? <Status status="skipped" word="No longer open" /> : <Status status="pending" word="Open" />;
  }
}

function Selected({ entry, onNext }: { entry: Entry; onNext?: () => void }) {
  const found = useApproval(entry).data;
  const approval = entry.gone ? (found ?? entry.approval) : entry.approval;
  return <Followed key={keyOf(approval)} approval={approval} isGone={entry.gone} onNext={onNext} />;
}

/** A link to an approval that is not in the list: it was decided, or it is for other people. */
function ByAddress({ item }: { item: string }) {
  const [runId = "", name = ""] = item.split(/\/(.*)/, 2);
  const query = useOneApproval(runId, name, name !== "");
  if (query.error) return <Failed error={query.error} retry={() => void query.refetch()} />;
  if (!query.data) return <Skeleton rows={4} />;
  return <Followed key={item} approval={query.data} isGone={query.data.status !== "open"} />;
}

/** A form is for the question that it was opened for: if the run asks another one under the same name, it starts anew. */
function Followed(props: Shown) {
  const { question } = props.approval;
  const [first] = useState(question);
  return <ApprovalDetail key={question} hasChanged={question !== first} {...props} />;
}
