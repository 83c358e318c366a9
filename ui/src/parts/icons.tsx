/** Icons: a 16 px grid and 1.5 px strokes in the colour of the text. Status marks differ in shape, not in colour alone. */
import type { ReactNode } from "react";

const ICONS = {
  runs: (
    <>
      <path d="M2.5 4h6M2.5 8h11M2.5 12h8" />
    </>
  ),
  flow: (
    <>
      <rect x="2" y="2.5" width="4.5" height="4" rx="1" />
      <rect x="9.5" y="9.5" width="4.5" height="4" rx="1" />
      <path d="M4.2 6.5v3a2 2 0 0 0 2 2h3.3" />
    </>
  ),
  clock: (
    <>
      <circle cx="8" cy="8" r="5.7" />
      <path d="M8 4.8V8l2.2 1.6" />
    </>
  ),
  person: (
    <>
      <circle cx="8" cy="5.4" r="2.6" />
      <path d="M2.8 13.4c.6-2.5 2.7-3.8 5.2-3.8s4.6 1.3 5.2 3.8" />
    </>
  ),
  worker: (
    <>
      <rect x="2.2" y="2.7" width="11.6" height="4.4" rx="1.2" />
      <rect x="2.2" y="9" width="11.6" height="4.4" rx="1.2" />
      <path d="M4.8 4.9h.01M4.8 11.2h.01" />
    </>
  ),
  limit: (
    <>
      <path d="M2.5 11.5a5.7 5.7 0 1 1 11 0M8 10.8l2.6-3.6" />
    </>
  ),
  audit: (
    <>
      <path d="M4 2.5h8v11H4zM6.3 5.6h3.4M6.3 8h3.4M6.3 10.4h2" />
    </>
  ),
  gear: (
    <>
      <path d="M2.5 5h6.2M12 5h1.5M2.5 11H4M7.3 11h6.2" />
      <circle cx="10.3" cy="5" r="1.6" />
      <circle cx="5.6" cy="11" r="1.6" />
    </>
  ),
  search: (
    <>
      <circle cx="7" cy="7" r="4.2" />
      <path d="m10.2 10.2 3.3 3.3" />
    </>
  ),
  star: (
    <>
      <path d="M4 2.8h8v10.6L8 10.3l-4 3.1z" />
    </>
  ),
  plus: (
    <>
      <path d="M8 3.3v9.4M3.3 8h9.4" />
    </>
  ),
  x: (
    <>
      <path d="m4.5 4.5 7 7m0-7-7 7" />
    </>
  ),
  check: (
    <>
      <path d="m3.2 8.6 3.1 3.1 6.5-7" />
    </>
  ),
  down: (
    <>
      <path d="m4.5 6.3 3.5 3.5 3.5-3.5" />
    </>
  ),
  right: (
    <>
      <path d="m6.3 4.5 3.5 3.5-3.5 3.5" />
    </>
  ),
  up: (
    <>
      <path d="M8 12.8V3.4M4.2 7.1 8 3.3l3.8 3.8" />
    </>
  ),
  updown: (
    <>
      <path d="m5 6 3-3 3 3M5 10l3 3 3-3" />
    </>
  ),
  retry: (
    <>
      <path d="M13 8a5 5 0 1 1-1.6-3.7M13 2.4v2.9h-2.9" />
    </>
  ),
  fork: (
    <>
      <circle cx="4.4" cy="3.8" r="1.5" />
      <circle cx="4.4" cy="12.2" r="1.5" />
      <circle cx="11.6" cy="6.2" r="1.5" />
      <path d="M4.4 5.3v5.4M4.4 10c0-2 5.7-.6 5.7-3.6" />
    </>
  ),
  stop: (
    <>
      <circle cx="8" cy="8" r="5.7" />
      <path d="M4.2 4.2 11.8 11.8" />
    </>
  ),
  play: (
    <>
      <path d="M5 3.4v9.2L12.4 8z" />
    </>
  ),
  pause: (
    <>
      <path d="M5.5 3.5v9M10.5 3.5v9" />
    </>
  ),
  copy: (
    <>
      <rect x="5.5" y="5.5" width="8" height="8" rx="1.4" />
      <path d="M10.5 3.2a1 1 0 0 0-1-.7h-6a1 1 0 0 0-1 1v6c0 .4.3.8.7.9" />
    </>
  ),
  signal: (
    <>
      <path d="M8.8 2 3.6 9h4l-.6 5 5.4-7.3H8.3z" />
    </>
  ),
  more: (
    <>
      <path d="M3.5 8h.01M8 8h.01M12.5 8h.01" strokeWidth="2.2" />
    </>
  ),
  warn: (
    <>
      <path d="M8 2.6 14 13H2zM8 6.6v3M8 11.3h.01" />
    </>
  ),
  wait: (
    <>
      <path d="M4.4 2.5h7.2M4.4 13.5h7.2M5.2 2.5c0 3 1.4 4 2.8 5.5 1.4-1.5 2.8-2.5 2.8-5.5M5.2 13.5c0-3 1.4-4 2.8-5.5 1.4 1.5 2.8 2.5 2.8 5.5" />
    </>
  ),
  moon: (
    <>
      <path d="M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8z" />
    </>
  ),
  expand: (
    <>
      <path d="M9.5 3h3.5v3.5M13 3 9 7M6.5 13H3V9.5M3 13l4-4" />
    </>
  ),
  link: (
    <>
      <path d="M6.7 9.3a2.6 2.6 0 0 0 3.7 0l2.2-2.2a2.6 2.6 0 0 0-3.7-3.7l-.7.7M9.3 6.7a2.6 2.6 0 0 0-3.7 0L3.4 8.9a2.6 2.6 0 0 0 3.7 3.7l.7-.7" />
    </>
  ),
  file: (
    <>
      <path d="M4 2.3h5L12.3 5.6v8.1H4zM9 2.3v3.3h3.3" />
    </>
  ),
  filter: (
    <>
      <path d="M2.5 4h11M4.8 8h6.4M6.8 12h2.4" />
    </>
  ),
  table: (
    <>
      <rect x="2.3" y="3" width="11.4" height="10" rx="1.2" />
      <path d="M2.3 6.4h11.4M6.4 6.4V13" />
    </>
  ),
  keys: (
    <>
      <rect x="1.8" y="4" width="12.4" height="8" rx="1.4" />
      <path d="M4.6 6.6h.01M8 6.6h.01M11.4 6.6h.01M5.3 9.4h5.4" />
    </>
  ),
} satisfies Record<string, ReactNode>;

const MARKS = {
  success: (
    <>
      <circle cx="7" cy="7" r="6.2" fill="currentColor" />
      <path
        d="m4.2 7.3 2 2 3.7-4.2"
        fill="none"
        stroke="var(--surface)"
        strokeWidth="1.5"
        strokeLinecap="round"
        strokeLinejoin="round"
      />
    </>
  ),
  failed: (
    <>
      <path d="M4.3.7h5.4l3.6 3.6v5.4l-3.6 3.6H4.3L.7 9.7V4.3z" fill="currentColor" />
      <path d="m5 5 4 4m0-4-4 4" stroke="var(--surface)" strokeWidth="1.5" strokeLinecap="round" />
    </>
  ),
  running: (
    <>
      <circle cx="7" cy="7" r="5.4" fill="none" stroke="currentColor" strokeOpacity=".3" strokeWidth="1.6" />
      <path d="M7 1.6A5.4 5.4 0 0 1 12.4 7" fill="none" stroke="currentColor" strokeWidth="1.8" strokeLinecap="round" />
      <circle cx="7" cy="7" r="2.1" fill="currentColor" />
    </>
  ),
  dispatched: (
    <>
      <circle cx="7" cy="7" r="5.4" fill="none" stroke="currentColor" strokeWidth="1.5" />
      <path
        d="M4.5 7h4.6M7.2 4.9 9.3 7 7.2 9.1"
        fill="none"
        stroke="currentColor"
        strokeWidth="1.4"
        strokeLinecap="round"
        strokeLinejoin="round"
      />
    </>
  ),
  pending: (
    <>
      <circle cx="7" cy="7" r="5.4" fill="none" stroke="currentColor" strokeWidth="1.5" strokeDasharray="2.2 2.04" />
    </>
  ),
  skipped: (
    <>
      <path
        d="M2.4 3.4 6 7l-3.6 3.6M7.4 3.4 11 7l-3.6 3.6"
        fill="none"
        stroke="currentColor"
        strokeWidth="1.6"
        strokeLinecap="round"
        strokeLinejoin="round"
      />
    </>
  ),
  cancelled: (
    <>
      <rect x="1.6" y="1.6" width="10.8" height="10.8" rx="2.4" fill="none" stroke="currentColor" strokeWidth="1.5" />
      <path d="M4.4 7h5.2" stroke="currentColor" strokeWidth="1.7" strokeLinecap="round" />
    </>
  ),
} satisfies Record<string, ReactNode>;

export type IconName = keyof typeof ICONS;
export type StatusWord = keyof typeof MARKS;

export function Icon({ name, size = 16, className = "" }: { name: IconName; size?: 12 | 14 | 16; className?: string }) {
  return (
    <svg className={`i ${size === 16 ? "" : `i-${size}`} ${className}`} viewBox="0 0 16 16" aria-hidden="true">
      {ICONS[name]}
    </svg>
  );
}

/** The mark alone: for strips and grids whose cells have a label of their own. */
export function StatusMark({ status, className = "" }: { status: StatusWord; className?: string }) {
  return (
    <svg className={`sticon sticon-${status} ${className}`} viewBox="0 0 14 14" aria-hidden="true">
      <g className={status === "running" ? "spin" : undefined}>{MARKS[status]}</g>
    </svg>
  );
}

/** Inside another SVG. */
export function MarkIn(props: { status: StatusWord; x: number; y: number; size: number }) {
  return (
    <svg
      x={props.x}
      y={props.y}
      width={props.size}
      height={props.size}
      viewBox="0 0 14 14"
      className={`sticon-${props.status}`}
    >
      <g className={props.status === "running" ? "spin" : undefined}>{MARKS[props.status]}</g>
    </svg>
  );
}

export function IconIn(props: { name: IconName; x: number; y: number; size: number }) {
  return (
    <svg x={props.x} y={props.y} width={props.size} height={props.size} viewBox="0 0 16 16" className="i">
      {ICONS[props.name]}
    </svg>
  );
}

export function Logo() {
  return (
    <svg className="logo" viewBox="0 0 24 24" aria-hidden="true">
      <rect width="24" height="24" rx="6.5" fill="var(--inverse)" />
      <path
        d="M7.2 18.4V9.9a4.9 4.9 0 1 1 4.9 4.9"
        fill="none"
        stroke="var(--inverse-text)"
        strokeWidth="2.3"
        strokeLinecap="round"
      />
      <circle cx="12.1" cy="9.9" r="1.5" fill="var(--inverse-text)" />
    </svg>
  );
}
