import type { ReactNode } from "react";

export interface Tab {
  id: string;
  label: ReactNode;
}

/** Tabs as in the ARIA pattern: arrow keys move, the chosen one is in the tab order. */
export function Tabs(props: { label: string; tabs: Tab[]; value: string; onChange: (id: string) => void }) {
  const at = props.tabs.findIndex((t) => t.id === props.value);
  return (
    <div className="tabs" role="tablist" aria-label={props.label}>
      {props.tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          id={`tab-${tab.id}`}
          aria-controls={`panel-${tab.id}`}
          aria-selected={tab.id === props.value}
          tabIndex={tab.id === props.value ? 0 : -1}
          onClick={() => props.onChange(tab.id)}
          onKeyDown={(event) => {
            const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
            const next = step && props.tabs[(at + step + props.tabs.length) % props.tabs.length];
            if (!next) return;
            event.preventDefault();
            props.onChange(next.id);
            document.getElementById(`tab-${next.id}`)?.focus();
          }}
        >
          {tab.label}
        </button>
      ))}
    </div>
  );
}

/** A few choices of which one holds: Fit, Last 10 m, Selection. */
export function Segments(props: {
  label: string;
  options: { id: string; label: ReactNode }[];
  value: string;
  onChange: (id: string) => void;
}) {
  return (
    <div className="seg" role="group" aria-label={props.label}>
      {props.options.map((option) => (
        <button
          key={option.id}
          type="button"
          aria-pressed={option.id === props.value}
          onClick={() => props.onChange(option.id)}
        >
          {option.label}
        </button>
      ))}
    </div>
  );
}
