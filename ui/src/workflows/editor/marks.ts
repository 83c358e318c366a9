/** What is marked in the text: changed lines, problems with their fix, numbers. */
import { syntaxTree } from "@codemirror/language";
import { type EditorState, type Extension, RangeSet, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  EditorView,
  GutterMarker,
  gutterLineClass,
  ViewPlugin,
  type ViewUpdate,
  WidgetType,
} from "@codemirror/view";
import { type FlowProblem, fixOf, meantBy, otherHint, spotOf } from "./problems";

export interface Marks {
  problems: FlowProblem[];
  /** Lines that the published version does not have. */
  added: Set<number>;
}

export const setMarks = StateEffect.define<Marks>();

interface Marked {
  decorations: DecorationSet;
  gutter: RangeSet<GutterMarker>;
}

class LineClass extends GutterMarker {
  constructor(override readonly elementClass: string) {
    super();
  }
  override eq(other: GutterMarker): boolean {
    return other.elementClass === this.elementClass;
  }
}

const ADDED = new LineClass("yl-add");
const BAD = new LineClass("yl-bad");
const ADDED_LINE = Decoration.line({ class: "yl-add" });
const BAD_LINE = Decoration.line({ class: "yl-bad" });

/** The message behind the line, with the fix as a button. The footer of the editor shows the same for the keyboard. */
class Message extends WidgetType {
  constructor(readonly problem: FlowProblem) {
    super();
  }

  override eq(other: Message): boolean {
    return other.problem.message === this.problem.message && other.problem.hint === this.problem.hint;
  }

  override toDOM(view: EditorView): HTMLElement {
    const dom = document.createElement("span");
    dom.className = `yl-message${this.problem.severity === "warning" ? " is-warning" : ""}`;
    const meant = meantBy(this.problem.hint);
    const hint = meant ? "" : otherHint(this.problem.hint);
    const text = document.createElement("span");
    text.className = "yl-text";
    text.textContent = hint ? `${this.problem.message}; ${hint}` : this.problem.message;
    dom.title = text.textContent;
    dom.append(text);
    if (meant) dom.append("; did you mean\u00a0", this.fixButton(view, meant), "?");
    return dom;
  }

  private fixButton(view: EditorView, meant: string): HTMLElement {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "yl-fix";
    button.tabIndex = -1;
    button.textContent = meant;
    button.addEventListener("mousedown", (event) => event.preventDefault());
    button.addEventListener("click", () => applyFix(view, this.problem));
    return button;
  }

  override ignoreEvent(): boolean {
    return true;
  }
}

export function applyFix(view: EditorView, problem: FlowProblem): void {
  const fix = fixOf(view.state.doc.toString(), problem);
  if (!fix || view.state.readOnly) return;
  view.dispatch({ changes: fix, selection: { anchor: fix.from + fix.insert.length }, userEvent: "input.fix" });
  view.focus();
}

function marked(state: EditorState, marks: Marks): Marked {
  const text = state.doc.toString();
  const decorations: ReturnType<Decoration["range"]>[] = [];
  const gutter: ReturnType<GutterMarker["range"]>[] = [];
  const bad = new Set<number>();
  for (const problem of marks.problems) {
    const spot = spotOf(text, problem);
    if (!spot) continue;
    const line = state.doc.lineAt(spot.from);
    const warning = problem.severity === "warning";
    if (spot.to > spot.from) {
      const mark = Decoration.mark({ class: warning ? "yl-squiggle is-warning" : "yl-squiggle" });
      decorations.push(mark.range(spot.from, spot.to));
    }
    if (bad.has(line.number)) continue;
    bad.add(line.number);
    if (!warning) {
      decorations.push(BAD_LINE.range(line.from));
      gutter.push(BAD.range(line.from));
    }
    decorations.push(Decoration.widget({ widget: new Message(problem), side: 1 }).range(line.to));
  }
  for (const number of marks.added) {
    if (number > state.doc.lines || bad.has(number)) continue;
    const from = state.doc.line(number).from;
    decorations.push(ADDED_LINE.range(from));
    gutter.push(ADDED.range(from));
  }
  return { decorations: Decoration.set(decorations, true), gutter: RangeSet.of(gutter, true) };
}

const markField = StateField.define<Marked>({
  create: () => ({ decorations: Decoration.none, gutter: RangeSet.empty }),
  update(value, transaction) {
    for (const effect of transaction.effects) if (effect.is(setMarks)) return marked(transaction.state, effect.value);
    if (!transaction.docChanged) return value;
    return { decorations: value.decorations.map(transaction.changes), gutter: value.gutter.map(transaction.changes) };
  },
  provide: (field) => [
    EditorView.decorations.from(field, (value) => value.decorations),
    gutterLineClass.from(field, (value) => value.gutter),
  ],
});

const NUMBER = /^(-?\d[\w.]*|true|false|null|~)$/;
const numberMark = Decoration.mark({ class: "yl-number" });

/** The grammar of YAML has one kind of plain text; numbers, durations and truth values are told apart here. */
const numbers = ViewPlugin.fromClass(
  class {
    decorations: DecorationSet;
    constructor(view: EditorView) {
      this.decorations = numbersIn(view);
    }
    update(update: ViewUpdate): void {
      if (update.docChanged || update.viewportChanged || syntaxTree(update.startState) !== syntaxTree(update.state))
        this.decorations = numbersIn(update.view);
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

function numbersIn(view: EditorView): DecorationSet {
  const found: ReturnType<Decoration["range"]>[] = [];
  for (const { from, to } of view.visibleRanges)
    syntaxTree(view.state).iterate({
      from,
      to,
      enter: (node) => {
        if (node.name !== "Literal" || node.node.parent?.name === "Key") return;
        if (NUMBER.test(view.state.sliceDoc(node.from, node.to))) found.push(numberMark.range(node.from, node.to));
      },
    });
  return Decoration.set(found, true);
}

export const marking: Extension = [markField, numbers];
