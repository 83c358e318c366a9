/** Problems of a flow's document: where they are in the text, and the change that mends one. */
import type { Schemas } from "../../api/client";

export type FlowProblem = Schemas["FlowProblem"];

export interface Spot {
  from: number;
  to: number;
}

export interface Fix extends Spot {
  insert: string;
}

const WORD = /^[\w$./-]+(?::[\w$./-]+)*/;
const MEANT = /did you mean (?:`([^`]+)`|'([^']+)'|"([^"]+)"|([\w$.:/-]+?))[?,;]?(?:\s|$)/i;

/** The word at which a problem is, or the rest of the line. Lines count from 1, columns in characters from 1. */
export function spotOf(text: string, problem: Pick<FlowProblem, "line" | "column">): Spot | null {
  const line = problem.line ?? 0;
  if (line < 1) return null;
  let from = 0;
  for (let n = 1; n < line; n += 1) {
    const next = text.indexOf("\n", from);
    if (next < 0) return null;
    from = next + 1;
  }
  const end = text.indexOf("\n", from) < 0 ? text.length : text.indexOf("\n", from);
  const whole = text.slice(from, end);
  // A character outside of the basic plane is one column and two units of a text here.
  const before = [...whole].slice(0, Math.max((problem.column ?? 1) - 1, 0)).join("").length;
  const rest = whole.slice(before);
  const quote = /^["']/.exec(rest) ? 1 : 0;
  const word = WORD.exec(rest.slice(quote))?.[0] ?? rest.replace(/\s+#.*$/, "").trimEnd();
  const start = from + before + (WORD.test(rest.slice(quote)) ? quote : 0);
  return { from: Math.min(start, end), to: Math.min(Math.max(start + word.length, start), end) };
}

/** What was probably meant, when the hint says so. */
export function meantBy(hint: string | undefined): string | null {
  const found = MEANT.exec(hint ?? "");
  return found ? (found[1] ?? found[2] ?? found[3] ?? found[4] ?? null) : null;
}

/** The change that puts what was meant in the place of the word that is wrong. */
export function fixOf(text: string, problem: Pick<FlowProblem, "line" | "column" | "hint" | "message">): Fix | null {
  const insert = meantBy(problem.hint) ?? meantBy(problem.message);
  const spot = spotOf(text, problem);
  if (!insert || !spot || spot.from === spot.to) return null;
  const wrong = text.slice(spot.from, spot.to);
  // An expression's problem is at a name within it; a name ends where another sign begins.
  const named = quotedIn(problem.message).find((word) => wrong.startsWith(word));
  const to = named ? spot.from + named.length : spot.to;
  return text.slice(spot.from, to) === insert ? null : { from: spot.from, to, insert };
}

function quotedIn(message: string): string[] {
  return [...message.matchAll(/['"`]([^'"`]+)['"`]/g)].map((m) => m[1] as string).sort((a, b) => b.length - a.length);
}

/** The hint without the question that is shown as a button. */
export function otherHint(hint: string | undefined): string {
  return (hint ?? "").replace(MEANT, "").trim();
}
