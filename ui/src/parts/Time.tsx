import { useEffect, useState } from "react";
import { duration, roughly } from "../format/durations";
import { type Moment, ms, time, wholeTime } from "../format/times";

export function Time({ at, className }: { at: Moment | null | undefined; className?: string }) {
  if (at === null || at === undefined) return <span className="faint">–</span>;
  return (
    <time className={className} dateTime={new Date(ms(at)).toISOString()} title={wholeTime(at)}>
      {time(at)}
    </time>
  );
}

/** The clock, for what still runs. It ticks once a second while the page is visible. */
export function useNow(active = true, everyMs = 1000): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!active) return;
    const timer = setInterval(() => document.visibilityState === "visible" && setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [active, everyMs]);
  return now;
}

/** From `from` to `to`, or to now while there is no end. */
export function Elapsed({ from, to }: { from: Moment | null | undefined; to?: Moment | null }) {
  const now = useNow(!to);
  if (from === null || from === undefined) return <>–</>;
  return <>{duration(((to ? ms(to) : now) - ms(from)) / 1000)}</>;
}

/** "in 12 s", "4 m ago": only for what is about to happen or just did. */
export function Relative({ at }: { at: Moment }) {
  const now = useNow();
  const seconds = (ms(at) - now) / 1000;
  return (
    <time dateTime={new Date(ms(at)).toISOString()} title={wholeTime(at)}>
      {seconds >= 0 ? `in ${roughly(seconds)}` : `${roughly(-seconds)} ago`}
    </time>
  );
}
