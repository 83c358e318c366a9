/** A Python traceback for display: the frames of the person's own code first, those of libraries folded. */

export interface Frame {
  file: string;
  line: number;
  fn: string;
  code: string[];
  own: boolean;
}

/** Frames of one exception, innermost first. A chained exception that came before is in another one. */
export interface TraceBlock {
  /** How it came after the block that follows: "The above exception was the direct cause…". */
  link: string;
  head: string;
  frames: Frame[];
}

const FRAME = /^\s*(?:\|\s*)*File "([^"]*)", line (\d+)(?:, in (.*))?$/;
const LIBRARY = [
  "site-packages/",
  "dist-packages/",
  "/lib/python",
  "<frozen ",
  "perdure/sdk/",
  "perdure/engine/",
  "perdure/core/",
];
const LINKS = ["The above exception was the direct cause", "During handling of the above exception"];

export function isOwn(file: string): boolean {
  const path = file.replaceAll("\\", "/");
  return !LIBRARY.some((part) => path.includes(part));
}

/** The exception that was raised last comes first. */
export function parseTraceback(text: string): TraceBlock[] {
  const blocks: TraceBlock[] = [];
  let block: TraceBlock = { link: "", head: "", frames: [] };
  for (const line of text.split("\n")) {
    if (/^ *\+[-+]/.test(line)) continue; // between the members of a group
    const plain = line.replace(/^(?: *\| ?)+/, "").replace(/^ *\+ /, "");
    const link = LINKS.find((l) => plain.startsWith(l));
    if (link) {
      if (block.frames.length > 0 || block.head) blocks.push(block);
      block = { link: plain.trim(), head: "", frames: [] };
      continue;
    }
    readLine(block, plain);
  }
  if (block.frames.length > 0 || block.head) blocks.push(block);
  for (const each of blocks) each.frames.reverse();
  return blocks.reverse();
}

function readLine(block: TraceBlock, line: string): void {
  const match = FRAME.exec(line);
  if (match) {
    const [, file, number, fn] = match as unknown as [string, string, string, string | undefined];
    block.frames.push({ file, line: Number(number), fn: fn ?? "", code: [], own: isOwn(file) });
    return;
  }
  const frame = block.frames.at(-1);
  if (frame && /^\s{4}/.test(line)) {
    if (/[^\s~^]/.test(line)) frame.code.push(line.slice(4));
    return;
  }
  if (line.trim() && !/Traceback \(most recent call last\)/.test(line))
    block.head += (block.head ? "\n" : "") + line.trim();
}

export interface FrameGroup {
  own: boolean;
  frames: Frame[];
}

/** Own frames first, innermost first; then all others as one group. */
export function ownFirst(frames: Frame[]): { own: Frame[]; library: Frame[] } {
  return { own: frames.filter((f) => f.own), library: frames.filter((f) => !f.own) };
}

/** "httpx, anyio, perdure": the packages that frames belong to. */
export function packagesOf(frames: Frame[]): string[] {
  const found = frames.map((f) => {
    const path = f.file.replaceAll("\\", "/");
    const match = /(?:site|dist)-packages\/([^/]+)/.exec(path) ?? /\/lib\/python[\d.]*\/([^/]+)/.exec(path);
    if (match) return (match[1] as string).replace(/\.py$/, "");
    return /perdure\//.test(path) ? "perdure" : (/<frozen ([^.>]+)/.exec(path)?.[1] ?? "python");
  });
  return [...new Set(found)];
}

/** The last two parts of a path: etl/transform.py. */
export function shortFile(file: string): string {
  return file.replaceAll("\\", "/").split("/").slice(-2).join("/");
}
