import { useState } from "react";
import { toast } from "../shell/toasts";
import { Icon } from "./icons";

export async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without https the clipboard API is missing; a selection can still be copied.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

export function Copy({ text, label, icon = "copy" }: { text: string; label: string; icon?: "copy" | "link" }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      className="btn ghost icon sm"
      aria-label={label}
      title={label}
      onClick={() => {
        void copyText(text);
        setDone(true);
        setTimeout(() => setDone(false), 1500);
      }}
    >
      <Icon name={done ? "check" : icon} size={14} />
    </button>
  );
}
