/** The decision: the form of the approval, a note, and in words what follows. */

import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { plural } from "../format/numbers";
import { time } from "../format/times";
import { Actor } from "../parts/Actor";
import { ActError, useAct } from "../parts/acts";
import { Copy } from "../parts/Copy";
import { FormDialog } from "../parts/Dialog";
import { Icon, StatusMark } from "../parts/icons";
import { MenuButton, type MenuItem } from "../parts/Menu";
import { visible } from "../parts/Payload";
import { checkValue, initialValue, type JsonSchema, SchemaForm } from "../parts/SchemaForm";
import { useNow } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { MOD } from "../shell/Nav";
import { StatusOf, TimeLeft } from "./ApprovalsPage";
import { useLinks } from "./data";
import { type Approval, answerAs, mayAnswer, nextNodes, orList } from "./inbox";

type Decision = "approve" | "reject";

export interface Shown {
  approval: Approval;
  isGone: boolean;
  /** The run asked something else when the page was opened. */
  hasChanged?: boolean;
  onNext?: () => void;
}

export function DecisionForm(props: Shown) {
  const { approval } = props;
  const [isRead, setRead] = useState(!props.hasChanged);
  const { session, may } = useSession();
  const now = useNow();
  const isOwn = mayAnswer(approval, [session.name ?? null, session.subject ?? null]);
  const canAnswer = may("operate") && (isOwn || may("admin"));
  if (props.isGone || approval.status !== "open") return <Decided approval={approval} onNext={props.onNext} />;
  return (
    <section className="card" aria-label="Decision">
      <header>
        <h2 className="grow">Decision</h2>
        {approval.deadline_at && (
          <span className="tag attention">
            <Icon name="clock" size={12} />
            <TimeLeft approval={approval} now={now} />
          </span>
        )}
        {may("operate") && <MoreActs approval={approval} isOwn={isOwn} />}
      </header>
      {canAnswer && !isRead ? (
        <Changed onRead={() => setRead(true)} />
      ) : canAnswer ? (
        <Form approval={approval} isOwn={isOwn} />
      ) : (
        <p className="decided muted">
          {may("operate") ? `It is for ${orList(approval.answerers)} to decide.` : "Your role may look, not decide."}
        </p>
      )}
    </section>
  );
}

/** Instead of the form, so that a click meant for the question before does not decide this one. */
function Changed({ onRead }: { onRead: () => void }) {
  return (
    <div className="decided" role="alert">
      <p>The run asks something else now. What you entered was not recorded.</p>
      <p className="muted">Read the question again before you decide.</p>
      <button type="button" className="btn" onClick={onRead}>
        Decide on the new question
      </button>
    </div>
  );
}

function Form({ approval, isOwn }: { approval: Approval; isOwn: boolean }) {
  const client = useQueryClient();
  const schema = approval.form as JsonSchema | null;
  const [decision, setDecision] = useState<Decision>("approve");
  const [value, setValue] = useState<unknown>(() => initialValue(schema));
  const [comment, setComment] = useState("");
  const [chosen, setChosen] = useState("");
  const as = answerAs(approval, isOwn, chosen);
  const [isChecked, setChecked] = useState(false);
  const errors = decision === "approve" ? checkValue(schema, value) : {};
  const act = useAct({
    act: () => {
      const request = {
        comment,
        as,
        question: approval.question,
        ...(decision === "approve" && schema ? { value } : {}),
      };
      const params = { path: { id: approval.run_id, name: approval.name } };
      return decision === "approve"
        ? body(api.POST("/api/v1/approvals/{id}/{name}/approve", { params, body: request }))
        : body(api.POST("/api/v1/approvals/{id}/{name}/reject", { params, body: request }));
    },
    said: (answer) =>
      answer.status === "open" ? "Your answer is recorded; more are needed" : `${past(decision)}: ${answer.title}`,
    refresh: [["approvals"], ["approval"], ["counts"]],
    inForm: true,
    onDone: (answer) => client.setQueryData(["approval", answer.run_id, answer.name], answer),
  });
  const submit = () => {
    setChecked(true);
    if (!act.isPending && Object.keys(errors).length === 0) act.mutate();
  };
  useKeys({ "mod+Enter": submit });
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <div className="choose" role="radiogroup" aria-label="Decision">
        <Choice decision="approve" value={decision} onChange={setDecision} />
        <Choice decision="reject" value={decision} onChange={setDecision} />
      </div>
      {decision === "approve" && schema && (
        <SchemaForm schema={schema} value={value} onChange={setValue} errors={isChecked ? errors : {}} label="Value" />
      )}
      {!isOwn && <AnswerAs approval={approval} value={as ?? ""} onChange={setChosen} />}
      <label className="field">
        <span>
          Comment <span className="faint">optional</span>
        </span>
        <textarea className="input" rows={3} value={comment} onChange={(event) => setComment(event.target.value)} />
      </label>
      <Consequence approval={approval} decision={decision} />
      <ActError error={act.error} />
      <button
        type="submit"
        className={`btn primary decide ${decision === "reject" ? "danger" : ""}`}
        disabled={act.isPending}
      >
        <span>
          {act.isPending
            ? `${decision === "approve" ? "Approving" : "Rejecting"}…`
            : decision === "approve"
              ? "Approve"
              : "Reject"}
        </span>{" "}
        <kbd className="hide-narrow">{MOD.trim()}↵</kbd>
      </button>
    </form>
  );
}

function past(decision: Decision): string {
  return decision === "approve" ? "Approved" : "Rejected";
}

function Choice(props: { decision: Decision; value: Decision; onChange: (decision: Decision) => void }) {
  const isApprove = props.decision === "approve";
  return (
    <label>
      <input
        type="radio"
        name="decision"
        checked={props.value === props.decision}
        onChange={() => props.onChange(props.decision)}
      />
      <StatusMark status={isApprove ? "success" : "failed"} />
      {isApprove ? "Approve" : "Reject"}
    </label>
  );
}

function AnswerAs(props: { approval: Approval; value: string; onChange: (who: string) => void }) {
  return (
    <label className="field">
      <span>Answer in the name of</span>
      <select className="input" value={props.value} onChange={(event) => props.onChange(event.target.value)}>
        {props.approval.answerers.map((who) => (
          <option key={who}>{who}</option>
        ))}
      </select>
      <small>You are not asked yourself; as an administrator you can answer for one who is.</small>
    </label>
  );
}

/** What follows the decision, and what follows silence. */
function Consequence({ approval, decision }: { approval: Approval; decision: Decision }) {
  const links = useLinks(approval);
  const goes = (action: string) => nextNodes(links, approval.name, action);
  const yes = approval.votes.filter((v) => v.approved).length;
  const no = approval.votes.length - yes;
  const needed = decision === "approve" ? approval.quorum - yes : approval.reject_quorum - no;
  const then = goes(decision === "approve" ? "approved" : "rejected");
  return (
    <p className="consequence">
      {needed > 1 ? (
        <>
          Yours is one of {plural(needed, "answer")} that are still needed to {decision}.{" "}
        </>
      ) : (
        <>
          {decision === "approve" ? "Approving" : "Rejecting"} {then.length > 0 ? "starts" : "lets the run continue as"}{" "}
          <Strong>{then.length > 0 ? then.join(", ") : decision === "approve" ? "approved" : "rejected"}</Strong> at
          once.{" "}
        </>
      )}
      {approval.deadline_at ? (
        <Silence approval={approval} nodes={goes("timeout")} />
      ) : (
        "Without a decision the run keeps waiting."
      )}
    </p>
  );
}

function Silence({ approval, nodes }: { approval: Approval; nodes: string[] }) {
  return (
    <>
      Without a decision by {time(approval.deadline_at)}{" "}
      {nodes.length > 0 ? (
        <>
          the run continues with <Strong>{nodes.join(", ")}</Strong>.
        </>
      ) : (
        <>
          the approval <Strong>expires</Strong>, and no answer counts from then on.
        </>
      )}
    </>
  );
}

function Strong({ children }: { children: ReactNode }) {
  return <b className="strong">{children}</b>;
}

function Decided({ approval, onNext }: { approval: Approval; onNext?: () => void }) {
  const last = approval.votes.at(-1);
  return (
    <section className="card" aria-label="Decision">
      <header>
        <h2 className="grow">Decision</h2>
      </header>
      <div className="decided">
        <StatusOf approval={approval} isGone />
        {last && (
          <p className="muted">
            <Actor subject={last.who} />, {time(last.at)}
            {last.comment && `: ${visible(last.comment)}`}
          </p>
        )}
        {onNext && (
          <button type="button" className="btn" onClick={onNext}>
            Next open one <kbd>j</kbd>
          </button>
        )}
      </div>
    </section>
  );
}

function MoreActs({ approval, isOwn }: { approval: Approval; isOwn: boolean }) {
  const [dialog, setDialog] = useState<"delegate" | "link" | null>(null);
  const items: MenuItem[] = [];
  if (approval.answerers.length > 0)
    items.push({ label: "Delegate…", icon: "person", onSelect: () => setDialog("delegate") });
  items.push({ label: "Copy answer link…", icon: "link", onSelect: () => setDialog("link") });
  return (
    <span className="inline-menu">
      <MenuButton
        label="More about this approval"
        className="btn ghost icon sm"
        menuClassName="right-menu"
        items={items}
      >
        <Icon name="more" size={14} />
      </MenuButton>
      {dialog === "delegate" && <DelegateDialog approval={approval} isOwn={isOwn} onClose={() => setDialog(null)} />}
      {dialog === "link" && <LinkDialog approval={approval} onClose={() => setDialog(null)} />}
    </span>
  );
}

function DelegateDialog({ approval, isOwn, onClose }: { approval: Approval; isOwn: boolean; onClose: () => void }) {
  const [to, setTo] = useState("");
  const [chosen, setChosen] = useState("");
  const as = answerAs(approval, isOwn, chosen);
  const act = useAct({
    act: () =>
      body(
        api.POST("/api/v1/approvals/{id}/{name}/delegate", {
          params: { path: { id: approval.run_id, name: approval.name } },
          body: { to: to.trim(), as, question: approval.question },
        }),
      ),
    said: () => `${to.trim()} is asked now`,
    refresh: [["approvals"], ["approval"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title="Delegate"
      submit={to.trim() ? `Ask ${to.trim()} instead` : "Delegate"}
      disabled={!to.trim()}
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">Another person is asked in the place of one who is asked now.</p>
      {!isOwn && <AnswerAs approval={approval} value={as ?? ""} onChange={setChosen} />}
      <label className="field">
        <span>To</span>
        <input className="input" value={to} onChange={(event) => setTo(event.target.value)} spellCheck={false} />
        <small>The name of a person, as in their key or sign-in</small>
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}

function LinkDialog({ approval, onClose }: { approval: Approval; onClose: () => void }) {
  const [who, setWho] = useState(approval.answerers[0] ?? "");
  const [expires, setExpires] = useState("7d");
  const act = useAct({
    act: () =>
      body(
        api.POST("/api/v1/approvals/{id}/{name}/links", {
          params: { path: { id: approval.run_id, name: approval.name } },
          body: { who: who.trim(), expires_in: expires.trim() || null },
        }),
      ),
    inForm: true,
  });
  return (
    <FormDialog
      title="Answer link"
      submit="Create link"
      disabled={!who.trim() || act.isSuccess}
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">
        A page where one person can answer once, without an account. Anyone who has the address can use it.
      </p>
      <label className="field">
        <span>Who answers with it</span>
        <input className="input" value={who} onChange={(event) => setWho(event.target.value)} spellCheck={false} />
      </label>
      <label className="field">
        <span>Valid for</span>
        <input
          className="input"
          value={expires}
          onChange={(event) => setExpires(event.target.value)}
          spellCheck={false}
        />
      </label>
      {act.data && (
        <div className="link-made">
          <input
            className="input mono"
            readOnly
            value={act.data.url}
            aria-label="Answer link"
            onFocus={(event) => event.target.select()}
          />
          <Copy text={act.data.url} label="Copy answer link" />
        </div>
      )}
      <ActError error={act.error} />
    </FormDialog>
  );
}
