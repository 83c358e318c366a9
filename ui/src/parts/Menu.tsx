import { type KeyboardEvent, type ReactNode, useEffect, useId, useRef, useState } from "react";
import { Icon, type IconName } from "./icons";

export interface MenuItem {
  label: ReactNode;
  icon?: IconName;
  hint?: ReactNode;
  danger?: boolean;
  disabled?: boolean;
  onSelect?: () => void;
  href?: string;
  checked?: boolean;
}

/** A button with a menu. Arrow keys move, Esc closes and gives the focus back. `"-"` is a line. */
export function MenuButton(props: {
  label: string;
  className?: string;
  menuClassName?: string;
  items: (MenuItem | "-")[];
  children: ReactNode;
}) {
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => {
    if (!open) return;
    const away = (event: Event) => !root.current?.contains(event.target as Node) && setOpen(false);
    document.addEventListener("pointerdown", away);
    root.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  const close = () => {
    setOpen(false);
    root.current?.querySelector<HTMLElement>("button")?.focus();
  };
  const keys = (event: KeyboardEvent) => {
    if (!open) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...(root.current?.querySelectorAll<HTMLElement>("[role=menuitem]:not(:disabled)") ?? [])];
    const at = all.indexOf(document.activeElement as HTMLElement);
    all.at((at + step + all.length) % all.length)?.focus();
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: keys of the button and the menu inside it
    <div className="menu-root" ref={root} onKeyDown={keys}>
      <button
        type="button"
        className={props.className ?? "btn icon"}
        aria-label={props.label}
        title={props.label}
        aria-haspopup="menu"
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        onClick={() => setOpen(!open)}
      >
        {props.children}
      </button>
      {open && (
        <div className={`menu ${props.menuClassName ?? ""}`} role="menu" id={id}>
          {props.items.map((item, n) =>
            item === "-" ? (
              // biome-ignore lint/suspicious/noArrayIndexKey: lines have no name
              <hr key={n} />
            ) : (
              <button
                // biome-ignore lint/suspicious/noArrayIndexKey: the items of a menu do not move
                key={n}
                type="button"
                role="menuitem"
                disabled={item.disabled}
                className={item.danger ? "danger" : undefined}
                onClick={() => {
                  close();
                  item.onSelect?.();
                }}
              >
                {item.icon && <Icon name={item.icon} />}
                {item.label}
                {item.checked && <Icon name="check" size={14} className="right" />}
                {item.hint && <span className="faint">{item.hint}</span>}
              </button>
            ),
          )}
        </div>
      )}
    </div>
  );
}
