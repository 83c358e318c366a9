/** A sentence of the engine: its times in the viewer's zone, ids of keys no longer than the eye needs. */
import { withTimes } from "../format/sentences";
import { Time } from "./Time";

/** `key:` and an id, which no one reads to its end. The text stays whole: it can be found and copied. */
const SUBJECT = /(\bkey:[\w-]{12,})/;

export function Sentence({ text }: { text: string }) {
  return withTimes(text).map((part, n) =>
    part.at === undefined ? (
      // biome-ignore lint/suspicious/noArrayIndexKey: parts of a sentence
      <Words key={n} text={part.text} />
    ) : (
      // biome-ignore lint/suspicious/noArrayIndexKey: parts of a sentence
      <Time key={n} at={part.at} />
    ),
  );
}

function Words({ text }: { text: string }) {
  return text.split(SUBJECT).map((words, n) =>
    n % 2 === 0 ? (
      words
    ) : (
      // biome-ignore lint/suspicious/noArrayIndexKey: parts of a sentence
      <span key={n} className="subject clip" title={words}>
        {words}
      </span>
    ),
  );
}
