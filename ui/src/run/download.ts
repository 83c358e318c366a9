/** Files that are made from what the server answers. */
import { api, body } from "../api/client";
import { toast } from "../shell/toasts";

export function saveAs(text: string, name: string, type: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A name that every file system takes. */
export function fileName(text: string): string {
  return (
    text
      .replace(/[^A-Za-z0-9._-]+/g, "-")
      .replace(/^[.-]+/, "")
      .slice(0, 100) || "run"
  );
}

export async function downloadHistory(id: string, name: string): Promise<void> {
  try {
    const found = await body(api.GET("/api/v1/runs/{id}/export", { params: { path: { id } } }));
    saveAs(JSON.stringify(found, null, 2), `${fileName(name)}.history.json`, "application/json");
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error));
  }
}
