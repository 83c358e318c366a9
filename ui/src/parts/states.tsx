/** What is shown while there is nothing to show: loading, empty, failed. */
import { type ReactNode, useEffect, useState } from "react";
import { ApiError } from "../api/client";
import { Copy } from "./Copy";
import { Icon } from "./icons";

const SKELETON_AFTER_MS = 150;

/** Rows of the right height, after a moment, never over content. */
export function Skeleton({ rows = 8, height = 32 }: { rows?: number; height?: number }) {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), SKELETON_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div className="skeleton" role="status" aria-label="Loading" aria-busy="true">
      {shown &&
        Array.from({ length: rows }, (_, n) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: rows of nothing
          <i key={n} style={{ height: height - 12, width: `${88 - ((n * 17) % 34)}%`, margin: "6px 16px" }} />
        ))}
    </div>
  );
}

/** Why it is empty, the one next step, and the command. */
export function Empty(props: { title: string; children?: ReactNode; command?: string; action?: ReactNode }) {
  return (
    <div className="empty">
      <b>{props.title}</b>
      {props.children && <p className="muted">{props.children}</p>}
      {props.command && (
        <p className="command">
          <code>{props.command}</code>
          <Copy text={props.command} label="Copy command" />
        </p>
      )}
      {props.action}
    </div>
  );
}

/** An error with its code, what to do, a link to its page, and retry. One failed part does not take the page. */
export function Failed({ error, retry }: { error: Error; retry?: () => void }) {
  const problem = error instanceof ApiError ? error.problem : null;
  return (
    <div className="failed" role="alert">
      <Icon name="warn" />
      <div>
        <b>{problem ? problem.title : "No answer"}</b>
        <p>{error.message}</p>
        <p className="row">
          {problem && (
            <a className="link mono" href={`/errors#${problem.code}`}>
              {problem.code}
            </a>
          )}
          {retry && (
            <button type="button" className="btn sm" onClick={retry}>
              <Icon name="retry" size={14} />
              Try again
            </button>
          )}
        </p>
      </div>
    </div>
  );
}
