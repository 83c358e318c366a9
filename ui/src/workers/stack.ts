/** The stack of a blocked event loop, as the worker's watchdog reports it: innermost first, a person's own frames apart. */

export interface Frame {
  file: string;
  line: number;
  inside: string;
  source: string;
  isLibrary: boolean;
}

export interface Stack {
  /** A person's own frames, the innermost first. */
  own: Frame[];
  library: Frame[];
  /** "perdure, asyncio" */
  packages: string[];
  /** Frames were cut off at the outer end. */
  cut: boolean;
}

const FRAME = /^\s*File "(.+?)", line (\d+)(?:, in (.*))?$/;
const INSTALLED = /(?:^|\/)(?:site-packages|dist-packages)\/([^/]+)/;
const STANDARD = /(?:^|\/)lib\/python\d[\d.]*\/([^/]+)|^<frozen (\w+)/;
const OURS = /(?:^|\/)src\/perdure\//;
const SHOWN_PARTS = 2;

export function readStack(text: string): Stack {
  const frames: Frame[] = [];
  for (const line of text.split("\n")) {
    const match = FRAME.exec(line);
    if (match) {
      const file = match[1] as string;
      frames.push({
        file,
        line: Number(match[2]),
        inside: match[3] ?? "",
        source: "",
        isLibrary: packageOf(file) !== null,
      });
    } else if (frames.length > 0 && line.trim() && !/^\s*[\^~]+\s*$/.test(line)) {
      const frame = frames.at(-1) as Frame;
      frame.source = frame.source ? `${frame.source} ${line.trim()}` : line.trim();
    }
  }
  frames.reverse();
  const library = frames.filter((f) => f.isLibrary);
  return {
    own: frames.filter((f) => !f.isLibrary),
    library,
    packages: [...new Set(library.map((f) => packageOf(f.file) as string))],
    cut: text.startsWith("…"),
  };
}

function packageOf(file: string): string | null {
  if (OURS.test(file)) return "perdure";
  const match = INSTALLED.exec(file) ?? STANDARD.exec(file);
  const found = match && (match[1] ?? match[2]);
  return found ? found.replace(/\.py$/, "") : null;
}

/** The last parts of a path: etl/dedupe.py */
export function shortFile(file: string): string {
  return file.split("/").slice(-SHOWN_PARTS).join("/");
}

/** The call that a person wrote and that does not return. */
export function culprit(stack: Stack): Frame | null {
  return stack.own[0] ?? stack.library[0] ?? null;
}
