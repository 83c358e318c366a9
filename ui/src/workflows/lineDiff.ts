/** The lines in which two texts differ (Myers), for showing what a version or a draft changes. */

export interface DiffLine {
  kind: "same" | "add" | "del";
  text: string;
  /** Line numbers, from 1; null where a text does not have the line. */
  before: number | null;
  after: number | null;
}

/** Steps after which two texts count as wholly different: the cost grows with the square of this. */
export const DIFF_STEPS_MAX = 600;

export function lineDiff(before: string, after: string): DiffLine[] {
  const a = linesOf(before);
  const b = linesOf(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail += 1;
  const middle = shortest(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const kinds: DiffLine["kind"][] = [
    ...new Array<"same">(head).fill("same"),
    ...middle,
    ...new Array<"same">(tail).fill("same"),
  ];
  return numbered(kinds, a, b);
}

function linesOf(text: string): string[] {
  if (text === "") return [];
  const lines = text.split(/\r?\n/);
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

function numbered(kinds: DiffLine["kind"][], a: string[], b: string[]): DiffLine[] {
  let i = 0;
  let j = 0;
  return kinds.map((kind) => {
    const before = kind === "add" ? null : ++i;
    const after = kind === "del" ? null : ++j;
    const text = (before !== null ? a[before - 1] : b[j - 1]) as string;
    return { kind, text, before, after };
  });
}

/** The shortest way from `a` to `b`, removals before additions. */
function shortest(a: string[], b: string[]): DiffLine["kind"][] {
  if (a.length === 0 || b.length === 0) return replaced(a.length, b.length);
  const furthest = new Map<number, number>([[1, 0]]);
  const seen: Map<number, number>[] = [];
  const steps = Math.min(a.length + b.length, DIFF_STEPS_MAX);
  for (let d = 0; d <= steps; d += 1) {
    seen.push(new Map(furthest));
    for (let k = -d; k <= d; k += 2) {
      let x = goesDown(furthest, k, d) ? (furthest.get(k + 1) ?? 0) : (furthest.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      furthest.set(k, x);
      if (x >= a.length && x - k >= b.length) return wayBack(seen, a.length, b.length);
    }
  }
  return replaced(a.length, b.length);
}

function goesDown(furthest: Map<number, number>, k: number, d: number): boolean {
  return k === -d || (k !== d && (furthest.get(k - 1) ?? 0) < (furthest.get(k + 1) ?? 0));
}

function wayBack(seen: Map<number, number>[], width: number, height: number): DiffLine["kind"][] {
  const out: DiffLine["kind"][] = [];
  let x = width;
  let y = height;
  for (let d = seen.length - 1; d >= 0; d -= 1) {
    const furthest = seen[d] as Map<number, number>;
    const k = x - y;
    const before = goesDown(furthest, k, d) ? k + 1 : k - 1;
    const fromX = furthest.get(before) ?? 0;
    const fromY = fromX - before;
    while (x > Math.max(fromX, 0) && y > Math.max(fromY, 0)) {
      out.push("same");
      x -= 1;
      y -= 1;
    }
    if (d > 0) {
      out.push(x === fromX ? "add" : "del");
      x = fromX;
      y = fromY;
    }
  }
  return out.reverse();
}

function replaced(removed: number, added: number): DiffLine["kind"][] {
  return [...new Array<"del">(removed).fill("del"), ...new Array<"add">(added).fill("add")];
}

export function diffCounts(lines: DiffLine[]): { added: number; removed: number } {
  let added = 0;
  let removed = 0;
  for (const line of lines) {
    if (line.kind === "add") added += 1;
    if (line.kind === "del") removed += 1;
  }
  return { added, removed };
}

/** The changes with some lines around them; what lies between is left out. */
export function hunks(lines: DiffLine[], context = 2): DiffLine[][] {
  const out: DiffLine[][] = [];
  let last = -1;
  lines.forEach((line, n) => {
    if (line.kind === "same") return;
    const from = Math.max(n - context, last + 1, 0);
    if (out.length === 0 || from > last + 1) out.push([]);
    const to = Math.min(n + context, lines.length - 1);
    for (let at = from; at <= to; at += 1) (out.at(-1) as DiffLine[]).push(lines[at] as DiffLine);
    last = Math.max(last, to);
  });
  return out;
}

/** Numbers of the lines that the second text has and the first has not. */
export function addedLines(lines: DiffLine[]): Set<number> {
  return new Set(lines.filter((l) => l.kind === "add").map((l) => l.after as number));
}
