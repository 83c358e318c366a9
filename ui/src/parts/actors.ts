/** The name of who did something: a subject is `key:ID`, `user:NAME`, `link:NAME`, or one word such as `dev`. */
import { shortId } from "../format/ids";

export function actorName(subject: string, keys: ReadonlyMap<string, string>): string {
  const [kind, name] = split(subject);
  if (!name) return subject;
  if (kind === "key") return keys.get(name) ?? `key ${shortId(name)}`;
  if (kind === "user") return name;
  return kind === "link" ? `${name}, by link` : subject;
}

function split(subject: string): [kind: string, name: string] {
  const at = subject.indexOf(":");
  return at < 0 ? [subject, ""] : [subject.slice(0, at), subject.slice(at + 1)];
}

/** What the audit log is asked for: the id of a key where its name was typed, else the text itself. */
export function subjectOf(text: string, keys: ReadonlyMap<string, string>): string {
  const found = [...keys].find(([, name]) => name === text);
  return found ? `key:${found[0]}` : text;
}
