/** One approval: left what it is about, right the decision. */

import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { useSession } from "../api/session";
import { shortId } from "../format/ids";
import { count } from "../format/numbers";
import { clockMinutes, time } from "../format/times";
import { Actor } from "../parts/Actor";
import { Icon, StatusMark } from "../parts/icons";
import { brief, Payload, visible } from "../parts/Payload";
import { DecisionForm, type Shown } from "./DecisionForm";
import { type PathNode, usePath } from "./data";
import { type FactTable, labelOf, layout, shownScalar } from "./details";
import { type Approval, orList } from "./inbox";

const ROWS_SHOWN = 8;
const PATH_BEFORE = 4;
const PATH_AFTER = 3;

export function ApprovalDetail(props: Shown) {
  const { approval } = props;
  const found = layout(approval.details);
  return (
    <article className="appr" aria-label={approval.title}>
      <header className="appr-head">
        <div className="row muted">
          <Link className="link" to={`/runs/${approval.run_id}` as never}>
            {approval.workflow} <span className="mono">{approval.key ?? shortId(approval.run_id)}</span>
          </Link>
          <span className="faint">asks</span>
          <Asked names={approval.answerers} />
        </div>
        <h1>{visible(approval.title)}</h1>
        <RunPath approval={approval} />
      </header>
      <div className="appr-cols">
        <div className="appr-left">
          {approval.description && <p className="appr-desc">{visible(approval.description)}</p>}
          {found.facts.length > 0 && (
            <section className="card">
              <header>
                <h2 className="grow">What you are deciding</h2>
              </header>
              <table className="fact-table">
                <tbody>
                  {found.facts.map(([name, value]) => (
                    <tr key={name}>
                      <td className="muted">{visible(labelOf(name))}</td>
                      <td>{visible(shownScalar(value))}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </section>
          )}
          {found.tables.map((table) => (
            <DetailTable key={table.title} table={table} />
          ))}
          {found.rest.length > 0 && (
            <section className="card">
              <header>
                <h2 className="grow">
                  {found.facts.length + found.tables.length > 0 ? "More" : "What you are deciding"}
                </h2>
              </header>
              {found.rest.map(([name, value]) => (
                <div className="fact-rest" key={name}>
                  <span className="eyebrow">{visible(name)}</span>
                  <Payload value={value} />
                </div>
              ))}
            </section>
          )}
          <Activity approval={approval} />
        </div>
        <DecisionForm {...props} />
      </div>
    </article>
  );
}

function Asked({ names }: { names: string[] }) {
  const { session } = useSession();
  if (names.length === 0) return <span>anyone who may operate runs</span>;
  return names.map((name, n) => (
    <span key={name} className="row">
      {n > 0 && <span className="faint">or</span>}
      {name === session.subject || name === session.name ? (
        <>
          <span className="avatar">{initials(session.name ?? name)}</span>
          {visible(session.name ?? name)}
        </>
      ) : (
        <>
          {isPerson(name) && <span className="avatar">{initials(name)}</span>}
          {visible(name)}
        </>
      )}
    </span>
  ));
}

/** Names of groups are one word. */
function isPerson(name: string): boolean {
  return /[ .@]/.test(name);
}

function initials(name: string): string {
  const [first = "", second = ""] = name.split(/[ .@]+/);
  return `${first.charAt(0)}${second.charAt(0)}`.toUpperCase();
}

function DetailTable({ table }: { table: FactTable }) {
  const [all, setAll] = useState(false);
  const rows = all ? table.rows : table.rows.slice(0, ROWS_SHOWN);
  return (
    <section className="card">
      <header>
        <h2 className="grow">{visible(table.title)}</h2>
        {table.rows.length > ROWS_SHOWN && (
          <button type="button" className="btn ghost sm" onClick={() => setAll(!all)} aria-expanded={all}>
            {all ? "First ones" : `All ${count(table.rows.length)}`}
          </button>
        )}
      </header>
      <div className="table-scroll">
        <table className="grid">
          <thead>
            <tr>
              {table.columns.map((c) => (
                <th key={c.name} className={c.isNumber ? "num" : undefined}>
                  {visible(labelOf(c.name))}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, n) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: rows of a fixed list
              <tr key={n}>
                {table.columns.map((c) => (
                  <td
                    key={c.name}
                    className={c.isNumber ? "num" : c.isCode ? "mono" : "clip"}
                    title={brief(row[c.name] ?? "", 400)}
                  >
                    {brief(shownScalar(row[c.name]))}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function RunPath({ approval }: { approval: Approval }) {
  const nodes = usePath(approval).data;
  if (!nodes) return null;
  const at = nodes.findIndex((n) => n.node === approval.name);
  if (at < 0) return null;
  const from = Math.max(0, at - PATH_BEFORE);
  // What runs beside it, such as the timer of its deadline, is not on the way.
  const after = nodes.slice(at + 1).filter((n) => n.status === "pending");
  const shown = [...nodes.slice(from, at + 1), ...after.slice(0, PATH_AFTER)];
  const isMore = after.length > PATH_AFTER;
  return (
    <div className="path" role="img" aria-label={`Where the run is: ${shown.map(nodeText).join(", ")}`}>
      {from > 0 && <span className="faint">…</span>}
      {shown.map((node, n) => (
        <span key={node.node}>
          {(n > 0 || from > 0) && <span className="arrow">→</span>}
          <PathStep node={node} isHere={node.node === approval.name} />
        </span>
      ))}
      {isMore && <span className="faint">→ …</span>}
    </div>
  );
}

function nodeText(node: PathNode): string {
  return `${node.node} ${node.status}`;
}

function PathStep({ node, isHere }: { node: PathNode; isHere: boolean }) {
  const name = node.tasks > 1 ? `${node.node} × ${count(node.tasks)}` : node.node;
  if (isHere) return <span className="here">{name}</span>;
  if (node.status === "pending") return <span className="faint">{name}</span>;
  return (
    <>
      <StatusMark status={node.status} />
      {name}
    </>
  );
}

function Activity({ approval }: { approval: Approval }) {
  const lines: { at: string; node: React.ReactNode }[] = [
    {
      at: approval.created_at,
      node: approval.deadline_at ? `The run asked, with a deadline of ${time(approval.deadline_at)}` : "The run asked",
    },
    ...approval.votes.map((vote) => ({
      at: vote.at,
      node: (
        <span>
          <b className="strong">
            <Actor subject={vote.who} />
          </b>{" "}
          {vote.approved ? "approved" : "rejected"}
          {vote.via !== "rest" && ` by ${vote.via}`}
          {vote.comment && `: ${visible(vote.comment)}`}
        </span>
      ),
    })),
  ];
  if (approval.escalate_at && Date.parse(approval.escalate_at) <= Date.now())
    lines.push({ at: approval.escalate_at, node: `Escalated to ${orList(approval.escalate_to)}` });
  lines.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  return (
    <section aria-label="Activity">
      <h2 className="h2">Activity</h2>
      <ul className="feed muted">
        {lines.map((line) => (
          <li key={`${line.at}${lines.indexOf(line)}`}>
            <time dateTime={line.at} title={time(line.at)}>
              {clockMinutes(line.at)}
            </time>
            {line.node}
          </li>
        ))}
      </ul>
      {approval.escalate_at && Date.parse(approval.escalate_at) > Date.now() && (
        <p className="faint small">
          <Icon name="clock" size={12} /> Escalates to {orList(approval.escalate_to)} at {time(approval.escalate_at)}.
        </p>
      )}
    </section>
  );
}
