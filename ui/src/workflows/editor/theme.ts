/** The look of the editor, in the colours of the theme: custom properties reach into the shadow root. */
import { HighlightStyle } from "@codemirror/language";
import { EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";

export const highlighting = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--code-key)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.comment, tags.lineComment], color: "var(--code-comment)" },
  { tag: [tags.labelName, tags.typeName, tags.meta], color: "var(--text-2)" },
]);

export const look = EditorView.theme({
  "&": { height: "100%", color: "var(--text)", backgroundColor: "var(--surface)", fontSize: "12.5px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": {
    fontFamily: "var(--mono)",
    lineHeight: "22px",
    scrollbarWidth: "thin",
    scrollbarColor: "var(--line-strong) transparent",
  },
  ".cm-content": { padding: "10px 0 20px", caretColor: "var(--accent)" },
  ".cm-line": { padding: "0 16px 0 0" },
  ".cm-cursor, .cm-dropCursor": { borderLeft: "1.5px solid var(--accent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    background: "color-mix(in srgb, var(--accent) 25%, transparent)",
  },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--text-3)", border: "0" },
  ".cm-lineNumbers .cm-gutterElement": {
    minWidth: "44px",
    padding: "0 16px 0 8px",
    fontVariantNumeric: "tabular-nums",
  },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  ".cm-activeLineGutter": { color: "var(--text)" },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": {
    backgroundColor: "var(--surface-3)",
    outline: "1px solid var(--line-strong)",
  },
  ".yl-number": { color: "var(--code-number)" },
  ".yl-add": { backgroundColor: "var(--success-soft)" },
  ".cm-gutterElement.yl-add": { backgroundColor: "var(--success-soft)", boxShadow: "inset 2px 0 var(--success-mark)" },
  ".yl-bad, .cm-gutterElement.yl-bad": { backgroundColor: "var(--failed-soft)" },
  ".cm-gutterElement.yl-bad": { color: "var(--failed-text)" },
  ".yl-squiggle": {
    textDecoration: "underline wavy var(--failed-mark)",
    textUnderlineOffset: "4px",
    textDecorationThickness: "1px",
  },
  ".yl-squiggle.is-warning": { textDecorationColor: "var(--attention-mark)" },
  ".yl-message": {
    display: "inline-flex",
    maxWidth: "72ch",
    paddingLeft: "22px",
    verticalAlign: "top",
    whiteSpace: "nowrap",
    color: "var(--failed-text)",
    font: "var(--t-12)/22px var(--sans)",
    cursor: "default",
  },
  ".yl-text": { overflow: "hidden", textOverflow: "ellipsis" },
  ".yl-message.is-warning": { color: "var(--attention-text)" },
  ".yl-fix": {
    all: "unset",
    cursor: "pointer",
    fontFamily: "var(--mono)",
    textDecoration: "underline",
    textUnderlineOffset: "3px",
  },
  ".cm-tooltip": {
    border: "0",
    borderRadius: "var(--r-4)",
    backgroundColor: "var(--overlay)",
    boxShadow: "var(--shadow-3)",
    overflow: "hidden",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": {
    padding: "4px",
    minWidth: "300px",
    maxWidth: "min(520px, 90vw)",
    maxHeight: "20em",
    fontFamily: "var(--sans)",
    fontSize: "var(--t-13)",
    scrollbarWidth: "thin",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": {
    display: "flex",
    alignItems: "center",
    gap: "24px",
    height: "28px",
    padding: "0 8px",
    lineHeight: "28px",
    borderRadius: "var(--r-2)",
    color: "var(--text)",
  },
  ".cm-tooltip-autocomplete > ul > li[aria-selected], .cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]": {
    background: "var(--surface-3)",
    color: "var(--text)",
  },
  ".cm-completionLabel": { fontFamily: "var(--mono)", fontSize: "var(--t-12)", flex: "none" },
  ".cm-completionMatchedText": { textDecoration: "none", fontWeight: "var(--w-strong)" },
  ".cm-completionDetail": {
    marginLeft: "auto",
    fontStyle: "normal",
    color: "var(--text-3)",
    overflow: "hidden",
    textOverflow: "ellipsis",
    minWidth: "0",
  },
  "@media (max-width: 699px)": {
    ".cm-lineNumbers .cm-gutterElement": { minWidth: "34px", padding: "0 10px 0 4px" },
  },
});
