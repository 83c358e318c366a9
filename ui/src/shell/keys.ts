/**
 * Keyboard shortcuts. A component says which keys it takes while it is there; the last one to ask wins.
 *
 * "j", "shift+x", "mod+k" (⌘ or Ctrl), "g r" (one after the other), "Escape". Plain keys are not taken while a person types.
 */
import { useEffect, useRef } from "react";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

const SEQUENCE_MS = 900;
const stack: { current: Keys }[] = [];
let before = { key: "", at: 0 };

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement &&
    (target.isContentEditable ||
      /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) ||
      target.closest(".cm-editor") !== null)
    ? !(target instanceof HTMLInputElement && /^(checkbox|radio)$/.test(target.type))
    : false;
}

function nameOf(event: KeyboardEvent): string {
  const mod = event.metaKey || event.ctrlKey ? "mod+" : "";
  const shift = event.shiftKey && /^[A-Za-z]$/.test(event.key) ? "shift+" : "";
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  return `${mod}${shift}${key}`;
}

function find(name: string): ((event: KeyboardEvent) => void) | undefined {
  for (let n = stack.length - 1; n >= 0; n -= 1) {
    const taken = stack[n]?.current[name];
    if (taken) return taken;
  }
  return undefined;
}

function handle(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.altKey || event.isComposing) return;
  const name = nameOf(event);
  if (document.querySelector("dialog[open]") && name !== "mod+k") return;
  const typing = isTyping(event.composedPath()[0] ?? event.target);
  if (typing && !name.startsWith("mod+") && name !== "Escape") return;
  const sequence = before.key && Date.now() - before.at < SEQUENCE_MS ? `${before.key} ${name}` : "";
  const action = (sequence && find(sequence)) || find(name);
  before = { key: action ? "" : name, at: Date.now() };
  if (!action) return;
  event.preventDefault();
  action(event);
}

if (typeof document !== "undefined") document.addEventListener("keydown", handle);

export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    stack.push(latest);
    return () => {
      stack.splice(stack.indexOf(latest), 1);
    };
  }, []);
}
