/** Completion of keys, values and names of tasks from the JSON Schema of flows. */
import type { Completion, CompletionContext, CompletionResult, CompletionSource } from "@codemirror/autocomplete";
import { type Schema, type Suggestion, suggestions } from "./schemaComplete";
import { entriesOf, type Place, placeAt } from "./yamlPath";

const TYPED = /^[\w$.:/-]*$/;

export function completionSource(schema: () => Schema | null): CompletionSource {
  return (context: CompletionContext): CompletionResult | null => {
    const root = schema();
    if (!root) return null;
    const text = context.state.doc.toString();
    const place = placeAt(text, context.pos);
    if (place.at === "none" || !TYPED.test(place.typed)) return null;
    if (!context.explicit && place.typed === "" && place.at !== "value") return null;
    const found = suggestions(root, entriesOf(text), place);
    if (found.length === 0) return null;
    return {
      from: place.from,
      options: found.map((suggestion, n) => option(suggestion, place, n)),
      validFor: TYPED,
    };
  };
}

function option(suggestion: Suggestion, place: Place, n: number): Completion {
  const key = suggestion.kind === "key";
  const opened = `:\n${" ".repeat(place.indent + 2)}`;
  return {
    label: suggestion.label,
    detail: suggestion.detail,
    type: key ? "property" : suggestion.kind === "task" ? "variable" : "enum",
    apply: key ? suggestion.label + (suggestion.opens && !place.flow ? opened : ": ") : suggestion.label,
    // In the order of the schema, which is the order people write them in.
    boost: -Math.min(n, 90) / 10,
  };
}
