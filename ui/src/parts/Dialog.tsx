import { type KeyboardEvent, type ReactNode, useEffect, useRef } from "react";

const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]";

/** Behind the last control comes the first: the browser's own dialog lets Tab leave for the page's frame, and the focus is lost. */
function aroundTheEnds(event: KeyboardEvent<HTMLDialogElement>): void {
  if (event.key !== "Tab" || event.defaultPrevented) return;
  const all = [...event.currentTarget.querySelectorAll<HTMLElement>(CONTROLS)].filter(
    (one) => one.tabIndex >= 0 && !one.matches(":disabled") && one.getClientRects().length > 0,
  );
  const [first, last] = [all[0], all.at(-1)];
  const isAtEnd = document.activeElement === (event.shiftKey ? first : last) || !first;
  if (!isAtEnd) return;
  event.preventDefault();
  (event.shiftKey ? last : first)?.focus();
}

/** A modal dialog: the browser's own, which keeps the focus inside, closes with Esc and gives the focus back. */
export function Dialog(props: { label: string; onClose: () => void; children: ReactNode; className?: string }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    if (dialog && !dialog.open) dialog.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-label={props.label}
      className={props.className}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onKeyDown={aroundTheEnds}
      onClick={(event) => event.target === element.current && props.onClose()}
    >
      {props.children}
    </dialog>
  );
}

/** A dialog with a title, a body and buttons. */
export function FormDialog(props: {
  title: string;
  onClose: () => void;
  onSubmit: () => void;
  submit: string;
  danger?: boolean;
  busy?: boolean;
  disabled?: boolean;
  children: ReactNode;
}) {
  return (
    <Dialog label={props.title} onClose={props.onClose}>
      <form
        className="dialog-form"
        onSubmit={(event) => {
          event.preventDefault();
          if (!props.busy && !props.disabled) props.onSubmit();
        }}
      >
        <h2 className="h2">{props.title}</h2>
        {props.children}
        <div className="row dialog-buttons">
          <span className="grow" />
          <button type="button" className="btn" onClick={props.onClose}>
            Close
          </button>
          <button
            type="submit"
            className={`btn primary ${props.danger ? "danger" : ""}`}
            disabled={props.busy || props.disabled}
          >
            {props.busy ? "Working…" : props.submit}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
