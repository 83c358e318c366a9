import { StatusMark, type StatusWord } from "./icons";

export function sentenceCase(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1);
}

/** A status is always its mark and its word. */
export function Status({ status, pill = false, word }: { status: StatusWord; pill?: boolean; word?: string }) {
  return (
    <span className={`st st-${status} ${pill ? "pill" : ""}`}>
      <StatusMark status={status} />
      {word ?? sentenceCase(status)}
    </span>
  );
}
