/** The foot of the editor: what is wrong and how to mend it, how the draft differs, and publishing. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, body } from "../../api/client";
import { useSession } from "../../api/session";
import { shortVersion } from "../../format/ids";
import { plural } from "../../format/numbers";
import { FormDialog } from "../../parts/Dialog";
import { Icon } from "../../parts/icons";
import { Status } from "../../parts/Status";
import { toast } from "../../shell/toasts";
import { ActError } from "../acts";
import { DiffCount } from "../DiffLines";
import type { Draft } from "./draft";
import { type FlowProblem, fixOf, meantBy, otherHint } from "./problems";
import type { Verdict } from "./validation";

export interface EditorFootProps {
  draft: Draft | null;
  version: string;
  name: string | null;
  text: string;
  verdict: Verdict | null;
  isCurrent: boolean;
  error: Error | null;
  retry: () => void;
  /** Which of the problems is shown. */
  at: number;
  counts: { added: number; removed: number };
  diffSeen: boolean;
  onFix: (problem: FlowProblem) => void;
  onGo: (problem: FlowProblem) => void;
  onNext: () => void;
  onDiscard: () => void;
  onDiff: () => void;
  onPublished: (name: string) => void;
}

export function EditorFoot(props: EditorFootProps) {
  const { may } = useSession();
  const publish = usePublish(props);
  const [discards, setDiscards] = useState(false);
  const differs = props.counts.added + props.counts.removed > 0;
  const why = obstacle(props, differs);
  return (
    <footer className="edit-foot">
      <div className="edit-said grow" aria-live="polite">
        {publish.error ? <ActError error={publish.error} /> : <Said {...props} />}
      </div>
      {props.draft && props.name !== null && props.draft.base !== props.version && (
        <span className="tag attention" title={`The draft began with ${props.draft.base}; look at the diff.`}>
          {shortVersion(props.version)} is newer than this draft
        </span>
      )}
      {differs && (
        <span className="faint hide-narrow nowrap">
          {props.version ? (
            <>
              draft against <span className="mono">{shortVersion(props.version)}</span>:{" "}
            </>
          ) : (
            "new flow: "
          )}
          <DiffCount {...props.counts} />
        </span>
      )}
      {props.draft && (
        <button type="button" className="btn ghost" onClick={() => setDiscards(true)}>
          Discard
        </button>
      )}
      <button type="button" className="btn" disabled={!differs} onClick={props.onDiff}>
        View diff
      </button>
      {may("develop") && (
        <button
          type="button"
          className="btn primary"
          disabled={why !== null || publish.isPending}
          title={why ?? "New runs get this version"}
          onClick={() => publish.mutate()}
        >
          {publish.isPending ? "Publishing…" : "Publish"}
        </button>
      )}
      {discards && (
        <FormDialog
          title="Discard the draft"
          submit="Discard the draft"
          danger
          onClose={() => setDiscards(false)}
          onSubmit={() => {
            setDiscards(false);
            props.onDiscard();
          }}
        >
          <p className="muted">
            {props.version ? "The text becomes what is published again." : "The text becomes the template again."} The
            draft (<DiffCount {...props.counts} />) is gone then.
          </p>
        </FormDialog>
      )}
    </footer>
  );
}

/** Why it cannot be published now. */
function obstacle(props: EditorFootProps, differs: boolean): string | null {
  if (!differs) return "Nothing has changed";
  if (!props.isCurrent) return "It is being checked";
  if (!props.verdict?.flow)
    return props.verdict?.problems.length === 1 ? "Fix the problem first" : "Fix the problems first";
  return props.diffSeen ? null : "View the diff first";
}

function usePublish(props: EditorFootProps) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: () =>
      body(
        api.POST("/api/v1/workflows/deploy", {
          body: { source: props.text, name: props.name, file: "", activate: true },
        }),
      ),
    onSuccess: async (workflow) => {
      const made = workflow.deployed;
      toast(made?.created === false ? `${workflow.name} is unchanged` : `Published ${shortVersion(workflow.version)}`);
      await Promise.all(
        [["workflow", workflow.name], ["workflows"]].map((queryKey) => client.invalidateQueries({ queryKey })),
      );
      props.onPublished(workflow.name);
    },
  });
}

function Said(props: EditorFootProps) {
  if (props.error && !props.isCurrent)
    return (
      <>
        <Status status="failed" word="Not checked" />
        <span className="muted clip">{props.error.message}</span>
        <button type="button" className="link" onClick={props.retry}>
          Try again
        </button>
      </>
    );
  const { verdict } = props;
  if (!verdict) return <span className="muted">{props.text.trim() ? "Checking…" : "Write a flow to begin."}</span>;
  const problem = verdict.problems[props.at];
  if (!problem) return <Fine {...props} verdict={verdict} />;
  return (
    <>
      <Status
        status={verdict.flow ? "success" : "failed"}
        word={plural(verdict.problems.length, verdict.flow ? "warning" : "problem")}
      />
      <ProblemText {...props} problem={problem} />
      {verdict.problems.length > 1 && (
        <button
          type="button"
          className="btn ghost icon sm"
          aria-label="Next problem"
          title="Next problem (F8)"
          onClick={props.onNext}
        >
          <Icon name="down" size={14} />
        </button>
      )}
    </>
  );
}

function Fine(props: EditorFootProps & { verdict: Verdict }) {
  const flow = props.verdict.flow;
  const renamed = flow && props.name !== null && flow.name !== props.name;
  const replaces = flow && props.name === null && flow.current;
  return (
    <>
      <Status status="success" word={props.draft || props.name === null ? "Valid" : "Published"} />
      <span className={`clip ${renamed || replaces ? "attention-text" : "muted"}`}>
        {renamed
          ? `It would be published as ${flow.name}, another workflow.`
          : replaces
            ? `${flow.name} exists: this would be its next version.`
            : flow && plural(flow.nodes, "task")}
      </span>
    </>
  );
}

function ProblemText(props: EditorFootProps & { problem: FlowProblem }) {
  const { problem } = props;
  const meant = meantBy(problem.hint);
  const fix = meant ? fixOf(props.text, problem) : null;
  const hint = fix ? otherHint(problem.hint) : problem.hint;
  return (
    <span className="muted clip" title={[problem.message, problem.hint].filter(Boolean).join("; ")}>
      {(problem.line ?? 0) > 0 && (
        <button type="button" className="link mono place" onClick={() => props.onGo(problem)}>
          {problem.line}:{problem.column}
        </button>
      )}{" "}
      {problem.message}
      {hint ? `; ${hint}` : "."}
      {fix && (
        <>
          {" "}
          Did you mean{" "}
          <button type="button" className="link mono" onClick={() => props.onFix(problem)}>
            {meant}
          </button>
          ?
        </>
      )}
    </span>
  );
}
