/** How far a new line of YAML is indented, from the line before it. */

const STEP = 2;

export function indentAfter(line: string): number {
  const indent = line.length - line.trimStart().length;
  if (line[indent] === "#") return indent;
  const text = line
    .slice(indent)
    .replace(/\s+#.*$/, "")
    .trimEnd();
  const dashes = /^(?:-\s+)+/.exec(text)?.[0].length ?? 0;
  // The keys of an item stand below its first key, behind the dash.
  const keyColumn = indent + (dashes > 0 && /:(\s|$)/.test(text) ? dashes : 0);
  if (/(^|[^\\]):$/.test(text) || /:\s+[|>][-+\d]*$/.test(text) || /[[{]$/.test(text)) return keyColumn + STEP;
  return keyColumn;
}
