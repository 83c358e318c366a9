/**
 * Data of users, shown as text. It reaches the page as text nodes only: markup and control characters are shown, never interpreted,
 * and long values are cut until the person asks for all of it.
 */
import { type ReactNode, useMemo, useState } from "react";
import { namespaceHeader } from "../api/client";
import { bytes } from "../format/numbers";

const CHARS_SHOWN = 8_000;
/** Colouring splits the text into many nodes; beyond this it stays plain. */
const CHARS_COLOURED = 60_000;
const TOKEN = /("(?:[^"\\]|\\.)*")(?=\s*:)|("(?:[^"\\]|\\.)*")|(-?\d[\d.eE+-]*|true|false|null)/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must be made visible
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Control characters as their pictures, so that an escape sequence is seen and not obeyed; direction marks by their number. */
export function visible(text: string): string {
  return text.replace(CONTROL, (c) => {
    const code = c.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

export function jsonText(value: unknown): string {
  return value === undefined ? "" : JSON.stringify(value, null, 2);
}

function coloured(text: string): ReactNode[] {
  const out: ReactNode[] = [];
  let at = 0;
  for (const match of text.matchAll(TOKEN)) {
    const [part, key, string] = match;
    if (match.index > at) out.push(text.slice(at, match.index));
    out.push(
      <span key={match.index} className={key ? "k" : string ? "s" : "d"}>
        {part}
      </span>,
    );
    at = match.index + part.length;
  }
  out.push(text.slice(at));
  return out;
}

export function TextBlock({
  text,
  className = "code",
  json = false,
}: {
  text: string;
  className?: string;
  json?: boolean;
}) {
  const [whole, setWhole] = useState(false);
  const cut = !whole && text.length > CHARS_SHOWN;
  const shown = cut ? text.slice(0, CHARS_SHOWN) : text;
  const nodes = useMemo(() => {
    const safe = visible(shown);
    return json && safe.length <= CHARS_COLOURED ? coloured(safe) : safe;
  }, [shown, json]);
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <pre className={`${className} payload`} tabIndex={0}>
        {nodes}
        {cut && "…"}
      </pre>
      {cut && (
        <button type="button" className="link small" onClick={() => setWhole(true)}>
          Show all {bytes(new Blob([text]).size)}
        </button>
      )}
    </>
  );
}

export function Payload({ value, className }: { value: unknown; className?: string }) {
  const text = useMemo(() => (typeof value === "string" ? JSON.stringify(value) : jsonText(value)), [value]);
  const stored = useMemo(() => storedIn(value), [value]);
  return (
    <>
      <TextBlock text={text} json className={className} />
      {stored.map((one) => (
        <StoredPayload key={one.href} stored={one} />
      ))}
    </>
  );
}

export interface Stored {
  href: string;
  size: number;
  media_type: string;
}

const STORED_MAX = 20;
const STORED_DEPTH = 6;
/** Longer ones are for a program: the link loads them into a file. */
const STORED_SHOWN_BYTES = 8 * 1024 * 1024;

/** Long values are kept apart from the history; the API answers a reference in their place. */
export function storedIn(value: unknown, depth = 0): Stored[] {
  if (value === null || typeof value !== "object" || depth > STORED_DEPTH) return [];
  const given = (value as { $payload?: Partial<Stored> }).$payload;
  if (given && typeof given.href === "string" && given.href.startsWith("/api/v1/payloads/")) {
    return [{ href: given.href, size: Number(given.size), media_type: String(given.media_type) }];
  }
  const found: Stored[] = [];
  for (const part of Object.values(value)) {
    found.push(...storedIn(part, depth + 1));
    if (found.length >= STORED_MAX) return found.slice(0, STORED_MAX);
  }
  return found;
}

function StoredPayload({ stored }: { stored: Stored }) {
  const [text, setText] = useState<string | null>(null);
  const [error, setError] = useState("");
  const show = async () => {
    try {
      const answer = await fetch(stored.href, { headers: namespaceHeader() });
      if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
      setText(await answer.text());
    } catch (failure) {
      setError((failure as Error).message);
    }
  };
  if (text !== null) return <TextBlock text={text} json={stored.media_type.includes("json")} />;
  return (
    <p className="row small stored">
      <span className="muted">
        {stored.media_type}, {bytes(stored.size)}, stored apart
      </span>
      {stored.size <= STORED_SHOWN_BYTES && (
        <button type="button" className="link" onClick={() => void show()}>
          Show all {bytes(stored.size)}
        </button>
      )}
      <a className="link" href={stored.href} download>
        Download
      </a>
      {error && <span className="form-error">{error}</span>}
    </p>
  );
}

/** The first characters of a value on one line, for cells of tables. */
export function brief(value: unknown, chars = 120): string {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return visible(text.length > chars ? `${text.slice(0, chars)}…` : text);
}
