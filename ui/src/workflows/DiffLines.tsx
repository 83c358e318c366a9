/** The lines in which two texts differ, with what is around them. */
import { Fragment } from "react";
import { visible } from "../parts/Payload";
import { type DiffLine, hunks } from "./lineDiff";

const SIGN = { same: " ", add: "+", del: "-" } as const;
/** Lines shown at once; each is an element. */
const LINES_SHOWN = 2000;

export function DiffLines({
  lines,
  context = 2,
  numbers = false,
}: {
  lines: DiffLine[];
  context?: number;
  numbers?: boolean;
}) {
  const parts = hunks(lines, context);
  const total = parts.reduce((n, part) => n + part.length, 0);
  let left = LINES_SHOWN;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <pre className="code difflines" tabIndex={0} role="region" aria-label="Differences">
      {parts.map((part, n) => {
        const shown = part.slice(0, left);
        left -= shown.length;
        return (
          // biome-ignore lint/suspicious/noArrayIndexKey: parts of one text do not move
          <Fragment key={n}>
            {n > 0 && <span className="dl gap">⋯</span>}
            {shown.map((line, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: as above
              <span key={at} className={`dl ${line.kind}`}>
                {numbers && <span className="dn">{line.after ?? line.before}</span>}
                {SIGN[line.kind]} {visible(line.text)}
                {"\n"}
              </span>
            ))}
          </Fragment>
        );
      })}
      {total > LINES_SHOWN && <span className="dl gap">{total - LINES_SHOWN} more lines differ</span>}
    </pre>
  );
}

export function DiffCount({ added, removed }: { added: number; removed: number }) {
  return (
    <>
      <span className="plus">+{added}</span> <span className="minus">−{removed}</span>
    </>
  );
}
