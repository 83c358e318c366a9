/** The same act elsewhere: command line, curl, test. */
import { useState } from "react";
import { useSession } from "../../api/session";
import { Copy } from "../../parts/Copy";
import { visible } from "../../parts/Payload";
import { Segments } from "../../parts/Tabs";
import { useRunView } from "../context";
import { actOf, COPY_KINDS, type CopyKind, type CopySubject, copyAs } from "../copyAs";
import { useTaskValues } from "../data";
import { labelOf } from "../selection";
import type { RunTask } from "../types";

const SHOWN_CHARS = 2_000;

export function CopyAsBox({ task }: { task: RunTask | null }) {
  const { name, run, selection, node } = useRunView();
  const { session, namespace } = useSession();
  const [kind, setKind] = useState<CopyKind>("CLI");
  const { input, output } = useTaskValues(name, task, run.events);
  const subject: CopySubject = {
    origin: location.origin,
    namespace: namespace === (session.namespace ?? "default") ? "" : namespace,
    run,
    task: task
      ? {
          label: labelOf(task, node?.tasks === 1),
          name: task.name,
          seq: task.seq,
          input: input.data?.value,
          output: output.data?.value,
        }
      : selection && node && (node.kind === "fanout" || node.kind === "task")
        ? { label: selection.node, name: selection.node, seq: null }
        : null,
  };
  const text = copyAs(kind, subject);
  return (
    <div className="copyas hide-down">
      <div className="row">
        <span className="eyebrow grow">{kind === "pytest" ? "Copy as a test" : `Copy ${actOf(subject)} as`}</span>
        <Segments
          label="Copy as"
          value={kind}
          onChange={(id) => setKind(id as CopyKind)}
          options={COPY_KINDS.map((k) => ({ id: k, label: k }))}
        />
        <Copy text={text} label="Copy" />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <pre className="code" tabIndex={0}>
        {visible(text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}…` : text)}
      </pre>
    </div>
  );
}
