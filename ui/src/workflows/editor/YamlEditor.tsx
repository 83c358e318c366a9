/**
 * The editor of a flow's text. It is large, so it is loaded when it is first shown.
 *
 * It lives in a shadow root: there its styles go through constructed style sheets, which the content security policy allows;
 * in the document they would be inline styles, which it does not.
 */
import {
  acceptCompletion,
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  completionKeymap,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, indentService, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLineGutter, keymap, lineNumbers } from "@codemirror/view";
import { type Ref, useEffect, useImperativeHandle, useRef } from "react";
import { completionSource } from "./completion";
import { indentAfter } from "./indentation";
import { applyFix, type Marks, marking, setMarks } from "./marks";
import { type FlowProblem, spotOf } from "./problems";
import type { Schema } from "./schemaComplete";
import { highlighting, look } from "./theme";

export interface YamlEditorHandle {
  fix: (problem: FlowProblem) => void;
  goTo: (problem: FlowProblem) => void;
  goToOffset: (from: number, to: number) => void;
}

export interface YamlEditorProps {
  text: string;
  onChange: (text: string) => void;
  readOnly: boolean;
  schema: Schema | null;
  marks: Marks;
  label: string;
  onCursor?: (text: string, position: number) => void;
  /** Moves to the next problem; bound to F8. */
  onNext?: () => void;
  handle?: Ref<YamlEditorHandle>;
}

function locked(readOnly: boolean): Extension {
  // Still focusable, so that the keyboard can scroll and select.
  return [EditorState.readOnly.of(readOnly), EditorView.contentAttributes.of({ "aria-readonly": String(readOnly) })];
}

export function YamlEditor(props: YamlEditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const lock = useRef(new Compartment());
  const latest = useRef(props);
  latest.current = props;

  useEffect(() => {
    const element = host.current as HTMLDivElement;
    const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    const made = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: latest.current.text,
        extensions: [
          lock.current.of(locked(latest.current.readOnly)),
          ...basics(latest.current.label),
          autocompletion({ override: [completionSource(() => latest.current.schema)], icons: false }),
          keymap.of([
            {
              key: "F8",
              run: () => {
                latest.current.onNext?.();
                return true;
              },
            },
            { key: "Tab", run: acceptCompletion },
            ...closeBracketsKeymap,
            ...completionKeymap,
            ...historyKeymap,
            ...defaultKeymap,
          ]),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) latest.current.onChange(update.state.doc.toString());
            if (update.selectionSet && update.view.hasFocus)
              latest.current.onCursor?.(update.state.doc.toString(), update.state.selection.main.head);
          }),
        ],
      }),
    });
    view.current = made;
    return () => {
      made.destroy();
      view.current = null;
    };
  }, []);

  // The text from outside: another version, or a draft that was discarded.
  useEffect(() => {
    const now = view.current;
    if (!now || now.state.doc.toString() === props.text) return;
    now.dispatch({ changes: { from: 0, to: now.state.doc.length, insert: props.text } });
  }, [props.text]);
  useEffect(() => view.current?.dispatch({ effects: setMarks.of(props.marks) }), [props.marks]);
  useEffect(
    () => view.current?.dispatch({ effects: lock.current.reconfigure(locked(props.readOnly)) }),
    [props.readOnly],
  );
  useImperativeHandle(props.handle, () => ({
    fix: (problem) => view.current && applyFix(view.current, problem),
    goTo: (problem) => {
      const spot = view.current && spotOf(view.current.state.doc.toString(), problem);
      if (spot) select(view.current as EditorView, spot.from, spot.to);
    },
    goToOffset: (from, to) => view.current && select(view.current, from, to),
  }));
  return <div className="yaml-host" ref={host} />;
}

function basics(label: string): Extension[] {
  return [
    lineNumbers(),
    highlightActiveLineGutter(),
    history(),
    drawSelection(),
    indentUnit.of("  "),
    EditorState.tabSize.of(2),
    indentService.of((context, position) => indentAfter(context.lineAt(position, -1).text)),
    bracketMatching(),
    closeBrackets(),
    yaml(),
    syntaxHighlighting(highlighting),
    marking,
    look,
    EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0", spellcheck: "false", autocapitalize: "off" }),
  ];
}

function select(view: EditorView, from: number, to: number): void {
  view.dispatch({ selection: { anchor: from, head: to }, effects: EditorView.scrollIntoView(from, { y: "center" }) });
  view.focus();
}
