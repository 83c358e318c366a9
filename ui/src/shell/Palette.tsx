/** Type a command, a workflow or a run. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { useViews } from "../api/views";
import { shortId } from "../format/ids";
import { Dialog } from "../parts/Dialog";
import { Icon, type IconName } from "../parts/icons";
import { nextTheme } from "./theme";
import { toast } from "./toasts";
import { useGo } from "./url";

interface Command {
  id: string;
  icon: IconName;
  label: string;
  hint?: string;
  act: () => void;
}

const SHOWN = 12;
const PAGES: [string, IconName, string, string?][] = [
  ["/runs", "runs", "Go to runs", "g r"],
  ["/workflows", "flow", "Go to workflows", "g w"],
  ["/schedules", "clock", "Go to schedules", "g s"],
  ["/approvals", "person", "Go to approvals", "g a"],
  ["/workers", "worker", "Go to workers and queues", "g k"],
  ["/limits", "limit", "Go to limits", "g l"],
  ["/dead-letters", "warn", "Go to dead letters", "g d"],
  ["/events", "signal", "Go to events and webhooks"],
  ["/audit", "audit", "Go to audit"],
  ["/settings", "gear", "Go to settings"],
];

export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const commands = useCommands(text.trim());
  const chosen = Math.min(at, commands.length - 1);
  useEffect(() => {
    list.current?.querySelector(".on")?.scrollIntoView({ block: "nearest" });
  });
  const run = (command: Command | undefined) => {
    if (!command) return;
    onClose();
    command.act();
  };
  return (
    <Dialog label="Command palette" className="palette" onClose={onClose}>
      <input
        placeholder="Type a command, a workflow, or a run id"
        aria-label="Command"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={commands[chosen] ? `palette-${chosen}` : undefined}
        spellCheck={false}
        autoComplete="off"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step) {
            event.preventDefault();
            setAt((chosen + step + commands.length) % Math.max(1, commands.length));
          } else if (event.key === "Enter") {
            event.preventDefault();
            run(commands[chosen]);
          }
        }}
      />
      <div className="menu" role="listbox" id="palette-list" aria-label="Commands" ref={list}>
        {commands.map((command, n) => (
          <button
            key={command.id}
            id={`palette-${n}`}
            type="button"
            role="option"
            aria-selected={n === chosen}
            tabIndex={-1}
            className={n === chosen ? "on" : undefined}
            onMouseMove={() => n !== chosen && setAt(n)}
            onClick={() => run(command)}
          >
            <Icon name={command.icon} />
            <span className="clip">{command.label}</span>
            {command.hint && <span className="faint">{command.hint}</span>}
          </button>
        ))}
        {commands.length === 0 && <p className="faint nothing">Nothing matches “{text}”.</p>}
      </div>
    </Dialog>
  );
}

function useCommands(text: string): Command[] {
  const go = useGo();
  const { may } = useSession();
  const views = useViews().data;
  const asked = useDeferredValue(text);
  const workflows = useQuery({
    queryKey: ["palette-workflows", asked],
    queryFn: () => body(api.GET("/api/v1/workflows", { params: { query: { q: asked, limit: 6 } } })),
    placeholderData: keepPreviousData,
  }).data?.items;
  const runs = useQuery({
    queryKey: ["palette-runs", asked],
    queryFn: () => body(api.GET("/api/v1/runs", { params: { query: { q: asked, limit: 6 } } })),
    enabled: asked.length >= 3,
    placeholderData: keepPreviousData,
  }).data?.items;
  return useMemo(() => {
    const fixed: Command[] = [
      ...PAGES.filter(([path]) => path !== "/audit" || may("admin")).map(([path, icon, label, hint]) => ({
        id: path,
        icon,
        label,
        hint,
        act: () => go(path),
      })),
      ...(views ?? []).map((view) => ({
        id: `view:${view.name}`,
        icon: "star" as const,
        label: `Open view ${view.name}`,
        act: () => go(`/runs?view=${encodeURIComponent(view.name)}`),
      })),
      { id: "theme", icon: "moon", label: "Switch theme", hint: "t", act: () => toast(`Theme: ${nextTheme()}`) },
    ];
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = fixed.filter((c) => words.every((word) => c.label.toLowerCase().includes(word)));
    const found: Command[] = (text ? (workflows ?? []) : []).flatMap((w) => [
      {
        id: `w:${w.name}`,
        icon: "flow" as const,
        label: `Open workflow ${w.name}`,
        act: () => go(`/workflows/${encodeURIComponent(w.name)}`),
      },
      ...(may("start")
        ? [
            {
              id: `s:${w.name}`,
              icon: "play" as const,
              label: `Start a run of ${w.name}`,
              act: () => go(`/runs?start=${encodeURIComponent(w.name)}`),
            },
          ]
        : []),
    ]);
    const recent: Command[] = (text.length >= 3 ? (runs ?? []) : []).map((run) => ({
      id: `r:${run.id}`,
      icon: "search" as const,
      label: `Open run ${run.key ?? shortId(run.id)}`,
      hint: `${run.workflow}, ${run.status}`,
      act: () => go(`/runs/${run.id}`),
    }));
    return [...matching, ...recent, ...found].slice(0, SHOWN);
  }, [text, views, workflows, runs, go, may]);
}
