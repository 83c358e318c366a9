/** The definition of a flow: its text, the graph of the draft beside it, and what stands between it and publishing. */
import { lazy, Suspense, useDeferredValue, useMemo, useRef, useState } from "react";
import { useSession } from "../../api/session";
import { Skeleton } from "../../parts/states";
import { useUrl } from "../../shell/url";
import { addedLines, diffCounts, lineDiff } from "../lineDiff";
import { DiffDialog } from "./DiffDialog";
import { DraftGraph } from "./DraftGraph";
import { useDraft } from "./draft";
import { EditorFoot } from "./EditorFoot";
import type { Marks } from "./marks";
import { TEMPLATE } from "./template";
import { useFlowSchema, useVerdict } from "./validation";
import type { YamlEditorHandle } from "./YamlEditor";
import { entriesOf, nodeAt, placeAt } from "./yamlPath";

const YamlEditor = lazy(() => import("./YamlEditor").then((module) => ({ default: module.YamlEditor })));

/** In a new flow every line is new: nothing is marked. */
const NONE = new Set<number>();
const NO_PROBLEMS: Marks["problems"] = [];

export interface FlowEditorProps {
  /** Null for a flow that is not there yet. */
  name: string | null;
  /** What is published now; both empty for a new flow. */
  version: string;
  published: string;
  onPublished: (name: string) => void;
}

export function FlowEditor(props: FlowEditorProps) {
  const { namespace } = useSession();
  const [draft, setDraft] = useDraft(namespace, props.name ?? "");
  const begun = props.name === null ? TEMPLATE : props.published;
  const text = draft?.text ?? begun;
  const { verdict, error, retry, isCurrent } = useVerdict(text, props.name);
  const url = useUrl();
  const schema = useFlowSchema();
  const [seen, setSeen] = useState<string | null>(null);
  const [showsDiff, setShowsDiff] = useState(false);
  const [at, setAt] = useState(0);
  const handle = useRef<YamlEditorHandle>(null);

  const settled = useDeferredValue(text);
  const lines = useMemo(() => lineDiff(props.published, settled), [props.published, settled]);
  const added = useMemo(() => (props.version ? addedLines(lines) : NONE), [props.version, lines]);
  const marks = useMarks(
    isCurrent || error !== null,
    isCurrent ? (verdict?.problems ?? NO_PROBLEMS) : NO_PROBLEMS,
    added,
  );
  const problems = verdict?.problems ?? [];

  const change = (next: string) => setDraft(next === begun ? null : { text: next, base: draft?.base ?? props.version });
  const next = () => {
    const problem = problems[(at + 1) % Math.max(problems.length, 1)];
    if (!problem) return;
    setAt((at + 1) % problems.length);
    handle.current?.goTo(problem);
  };
  const showNode = (path: string) => {
    const entry = entriesOf(text).find((e) => nodeAt(e.path) === path);
    if (entry) handle.current?.goToOffset(entry.from, entry.to);
  };

  return (
    <section className="pane edit" role="tabpanel" id="panel-definition" aria-label="Definition">
      <div className="edit-main">
        <Suspense fallback={<Skeleton rows={14} height={22} />}>
          <YamlEditor
            text={text}
            onChange={change}
            readOnly={false}
            schema={schema.data ?? null}
            marks={marks}
            label="Definition in YAML"
            onNext={next}
            onCursor={(now, position) => {
              const node = nodeAt(placeAt(now, position).path);
              if (node && node !== url.get("node")) url.set({ node });
            }}
            handle={handle}
          />
        </Suspense>
        <DraftGraph
          name={props.name}
          version={props.version}
          flow={verdict?.flow ?? null}
          isValid={!verdict || verdict.flow !== null}
          onSelect={showNode}
        />
      </div>
      <EditorFoot
        draft={draft}
        version={props.version}
        name={props.name}
        text={text}
        verdict={verdict ?? null}
        isCurrent={isCurrent}
        error={error}
        retry={() => void retry()}
        at={Math.min(at, Math.max(problems.length - 1, 0))}
        counts={diffCounts(lines)}
        diffSeen={seen === text}
        onFix={(problem) => handle.current?.fix(problem)}
        onGo={(problem) => handle.current?.goTo(problem)}
        onNext={next}
        onDiscard={() => setDraft(null)}
        onDiff={() => {
          setShowsDiff(true);
          setSeen(text);
        }}
        onPublished={(name) => {
          setDraft(null);
          props.onPublished(name);
        }}
      />
      {showsDiff && (
        <DiffDialog
          version={props.version}
          lines={lineDiff(props.published, text)}
          isValid={isCurrent && Boolean(verdict?.flow)}
          changes={isCurrent ? (verdict?.flow?.changes ?? null) : null}
          onClose={() => setShowsDiff(false)}
        />
      )}
    </section>
  );
}

/** The marks of the latest text that was checked. Until the next answer the editor moves them with the text. */
function useMarks(isSettled: boolean, problems: Marks["problems"], added: Marks["added"]): Marks {
  const last = useRef<Marks>({ problems: [], added: new Set() });
  return useMemo(() => {
    if (isSettled) last.current = { problems, added };
    return last.current;
  }, [isSettled, problems, added]);
}
