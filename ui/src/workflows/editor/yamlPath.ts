/**
 * Where in a YAML document the cursor is, and which keys the document has.
 *
 * An editor needs this of a text that is not finished, so it follows indentation and brackets and never gives up: blocks of
 * keys and items, flow collections over several lines, quoted texts, block scalars and comments.
 */

export type Path = (string | number)[];

export interface Entry {
  path: Path;
  /** Of the key in the text. */
  from: number;
  to: number;
  /** A plain or quoted value on the same line. */
  value?: string;
}

export interface Place {
  /** Of the mapping for a key, of the value itself for a value. */
  path: Path;
  /** `item`: an item of a list, which may be a text or the first key of a mapping. */
  at: "key" | "value" | "item" | "none";
  from: number;
  typed: string;
  /** Within brackets. */
  flow: boolean;
  /** Column of the mapping's keys. */
  indent: number;
}

interface Frame {
  indent: number;
  path: Path;
  /** The last key of a mapping; null for a list. */
  key: string | null;
  index: number;
}

interface FlowFrame {
  list: boolean;
  path: Path;
  key: string | null;
  index: number;
  from: number;
}

const KEY = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[\w$./-][\w$ ./-]*?)\s*:(?=\s|$)/;

export function entriesOf(text: string): Entry[] {
  return new Scan(text).run().entries;
}

export function placeAt(text: string, position: number): Place {
  return new Scan(text.slice(0, position)).run().place;
}

/** Keys and their plain values directly under `path`. */
export function valuesUnder(entries: Entry[], path: Path): Map<string, string | undefined> {
  const out = new Map<string, string | undefined>();
  for (const entry of entries)
    if (entry.path.length === path.length + 1 && path.every((part, n) => entry.path[n] === part))
      out.set(String(entry.path.at(-1)), entry.value);
  return out;
}

/** The node that a path of the document lies in, by the keys of the nodes it is within: `load`, `group.load`. */
export function nodeAt(path: Path): string | null {
  const keys: (string | number)[] = [];
  for (let n = 0; n < path.length - 1; n += 1) {
    if (path[n] !== "tasks" && path[n] !== "nodes") continue;
    keys.push(path[n + 1] as string);
    n += 1; // a task may be called `nodes`
  }
  return keys.length > 0 ? keys.join(".") : null;
}

class Scan {
  entries: Entry[] = [];
  place: Place = { path: [], at: "key", from: 0, typed: "", flow: false, indent: 0 };
  private frames: Frame[] = [];
  private flow: FlowFrame[] = [];
  private quote = "";
  private scalarIndent: number | null = null;

  constructor(private text: string) {}

  run(): this {
    let offset = 0;
    for (const line of this.text.split("\n")) {
      this.line(line, offset);
      offset += line.length + 1;
    }
    return this;
  }

  private line(line: string, offset: number): void {
    const indent = line.length - line.trimStart().length;
    if (this.flow.length > 0) {
      this.flowText(line, 0, offset);
      return;
    }
    if (this.scalarIndent !== null) {
      if (line.trim() === "" || indent > this.scalarIndent) {
        this.nowhere(offset + line.length);
        return;
      }
      this.scalarIndent = null;
    }
    const rest = line.slice(indent);
    if (rest.startsWith("#")) this.nowhere(offset + line.length);
    else this.block(line, indent, offset, null);
  }

  private nowhere(from: number): void {
    this.place = { path: [], at: "none", from, typed: "", flow: false, indent: 0 };
  }

  /** A key, an item or a text that begins at `column`; `item` is the path of the item that it stands in on this line. */
  private block(line: string, column: number, offset: number, item: Path | null): void {
    const rest = line.slice(column);
    const dash = /^-(\s+|$)/.exec(rest);
    if (dash) {
      const path = this.item(column, item);
      this.block(line, column + dash[0].length, offset, path);
      return;
    }
    const key = KEY.exec(rest);
    if (key) {
      this.keyed(line, column, offset, item, key);
      return;
    }
    if (/^[[{]/.test(rest)) {
      this.flowText(line, column, offset, item ?? this.openPath(column));
      return;
    }
    const path = item ?? this.mappingPath(column);
    const ended = /\s#/.test(rest) || /^["']/.test(rest);
    this.place = {
      path,
      at: ended ? "none" : item ? "item" : "key",
      from: offset + column,
      typed: rest,
      flow: false,
      indent: column,
    };
  }

  private item(column: number, within: Path | null): Path {
    // A list may stand at the column of the key it belongs to; then that mapping stays open.
    while (this.top && this.top.indent > column) this.frames.pop();
    let top = this.top;
    if (!top || top.key !== null || top.indent !== column) {
      top = { indent: column, path: within ?? this.openPath(column), key: null, index: -1 };
      this.frames.push(top);
    }
    top.index += 1;
    return [...top.path, top.index];
  }

  private keyed(line: string, column: number, offset: number, item: Path | null, match: RegExpExecArray): void {
    const path = item ?? this.mappingPath(column);
    while (this.top && (this.top.indent > column || (this.top.indent === column && this.top.key === null))) {
      this.frames.pop();
    }
    const key = unquoted(match[1] as string);
    if (this.top && this.top.indent === column && !item) this.top.key = key;
    else this.frames.push({ indent: column, path, key, index: 0 });
    const entry: Entry = {
      path: [...path, key],
      from: offset + column,
      to: offset + column + (match[1] as string).length,
    };
    this.entries.push(entry);
    this.valueOf(line, column + match[0].length, offset, column, entry);
  }

  private valueOf(line: string, column: number, offset: number, indent: number, entry: Entry): void {
    const space = line.slice(column).length - line.slice(column).trimStart().length;
    const from = column + space;
    const text = line.slice(from);
    if (/^[|>][-+\d]*\s*(#.*)?$/.test(text)) {
      this.scalarIndent = indent;
      this.nowhere(offset + line.length);
      return;
    }
    if (/^[[{]/.test(text)) {
      this.flowText(line, from, offset, entry.path);
      return;
    }
    const value = text.replace(/\s+#.*$/, "");
    if (value) entry.value = unquoted(value);
    const commented = /(^|\s)#/.test(text);
    this.place = {
      path: entry.path,
      at: space === 0 || commented ? "none" : "value",
      from: offset + from,
      typed: text,
      flow: false,
      indent,
    };
  }

  /** The mapping that a key at `column` belongs to. */
  private mappingPath(column: number): Path {
    const frames = this.frames.filter((f) => f.indent < column || (f.indent === column && f.key !== null));
    const top = frames.at(-1);
    if (!top) return [];
    return top.indent === column ? top.path : this.inside(top);
  }

  /** What a value that begins at `column` on a line of its own belongs to. */
  private openPath(column: number): Path {
    const top = this.frames.filter((f) => f.indent <= column).at(-1);
    return top ? this.inside(top) : [];
  }

  private inside(frame: Frame): Path {
    return [...frame.path, frame.key ?? frame.index];
  }

  private get top(): Frame | undefined {
    return this.frames.at(-1);
  }

  private flowText(line: string, start: number, offset: number, root?: Path): void {
    for (let n = start; n < line.length; n += 1) {
      const c = line[n] as string;
      if (this.quote) {
        if (c === "\\" && this.quote === '"') n += 1;
        else if (c === this.quote) this.quote = "";
        continue;
      }
      if (c === "#" && (n === 0 || /\s/.test(line[n - 1] as string))) {
        this.nowhere(offset + line.length);
        return;
      }
      if (this.flow.length === 0 && n > start && !/[[{]/.test(c)) {
        this.nowhere(offset + line.length); // behind the closing bracket
        return;
      }
      this.flowSign(c, line, n, offset, root);
    }
    this.flowPlace(offset + line.length, offset, line);
  }

  private flowSign(c: string, line: string, n: number, offset: number, root?: Path): void {
    const top = this.flow.at(-1);
    if (c === '"' || c === "'") {
      if (top && this.text.slice(top.from, offset + n).trim() === "") this.quote = c;
    } else if (c === "{" || c === "[") {
      const path = top ? flowPath(top) : (root ?? []);
      this.flow.push({ list: c === "[", path, key: null, index: 0, from: offset + n + 1 });
    } else if (c === "}" || c === "]") {
      this.endFlowValue(offset + n);
      this.flow.pop();
    } else if (c === "," && top) {
      this.endFlowValue(offset + n);
      top.key = null;
      top.index += 1;
      top.from = offset + n + 1;
    } else if (c === ":" && top && !top.list && top.key === null && /^(\s|$|[[{"'])/.test(line.slice(n + 1))) {
      const raw = this.text.slice(top.from, offset + n);
      top.key = unquoted(raw.trim());
      const from = top.from + raw.length - raw.trimStart().length;
      this.entries.push({ path: [...top.path, top.key], from, to: from + raw.trim().length });
      top.from = offset + n + 1;
    }
  }

  private endFlowValue(to: number): void {
    const top = this.flow.at(-1);
    if (!top || top.list || top.key === null) return;
    const path = flowPath(top);
    const entry = this.entries.findLast((e) => samePath(e.path, path));
    const value = this.text.slice(top.from, to).trim();
    if (entry && value && !/^[[{]/.test(value)) entry.value = unquoted(value);
  }

  private flowPlace(end: number, offset: number, line: string): void {
    const top = this.flow.at(-1);
    if (!top) {
      this.nowhere(end);
      return;
    }
    const raw = this.text.slice(top.from, end);
    const typed = raw.trimStart();
    const direct = top.key !== null && raw === "" && line.at(-1) === ":";
    this.place = {
      path: top.key === null && !top.list ? top.path : flowPath(top),
      at: this.quote || direct ? "none" : top.list ? "value" : top.key === null ? "key" : "value",
      from: end - typed.length,
      typed,
      flow: true,
      indent: end - offset - typed.length,
    };
  }
}

function flowPath(frame: FlowFrame): Path {
  return [...frame.path, frame.list ? frame.index : (frame.key ?? "")];
}

export function samePath(a: Path, b: Path): boolean {
  return a.length === b.length && a.every((part, n) => part === b[n]);
}

function unquoted(text: string): string {
  if (/^".*"$/.test(text)) {
    try {
      return String(JSON.parse(text));
    } catch {
      return text.slice(1, -1);
    }
  }
  return /^'.*'$/.test(text) ? text.slice(1, -1).replaceAll("''", "'") : text;
}
