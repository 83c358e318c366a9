/** Sentences of the engine, cut at the times that they name. The engine writes UTC; people read their own zone. */
export type SentencePart = { text: string; at?: number };

const UTC_TIME = /\b(\d{4}-\d\d-\d\d) (\d\d:\d\d(?::\d\d)?) UTC\b/g;

export function withTimes(sentence: string): SentencePart[] {
  const parts: SentencePart[] = [];
  let end = 0;
  for (const found of sentence.matchAll(UTC_TIME)) {
    const at = Date.parse(`${found[1]}T${found[2]}Z`);
    if (Number.isNaN(at)) continue;
    if (found.index > end) parts.push({ text: sentence.slice(end, found.index) });
    parts.push({ text: found[0], at });
    end = found.index + found[0].length;
  }
  if (end < sentence.length) parts.push({ text: sentence.slice(end) });
  return parts;
}
