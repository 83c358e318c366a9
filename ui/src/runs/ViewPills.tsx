/** Saved views: queries with a name, kept on the server for everyone in the namespace. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { useViewCounts, useViews } from "../api/views";
import { FormDialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { MenuButton, type MenuItem } from "../parts/Menu";
import { toast } from "../shell/toasts";
import { matching } from "./BulkBar";
import { isPureQuery, requestOf } from "./chips";

type View = Schemas["ViewDetail"];

/** Views that have a pill; the others are in the menu and in the navigation. */
const PILLS_MAX = 5;

interface Props {
  text: string;
  /** The view that the URL names. */
  current: string | null;
  onPick: (view: View | null) => void;
  className?: string;
}

export function ViewPills(props: Props) {
  const { may } = useSession();
  const views = useViews().data ?? [];
  const counts = useViewCounts(views.map((view) => view.name));
  const [dialog, setDialog] = useState<"save" | View | null>(null);
  const pressed = (view: View) => (props.current ? view.name === props.current : view.query === props.text.trim());
  const chosen = views.find(pressed);
  const shown = views.slice(0, PILLS_MAX);
  if (chosen && !shown.includes(chosen)) shown.splice(PILLS_MAX - 1, 1, chosen);
  const rest = views.filter((view) => !shown.includes(view));
  const items: (MenuItem | "-")[] = rest.map((view) => ({
    label: view.name,
    icon: "star",
    onSelect: () => props.onPick(view),
  }));
  if (may("operate")) {
    if (items.length > 0) items.push("-");
    items.push({
      label: "Save this query as a view…",
      icon: "plus",
      disabled: props.text.trim() === "" || chosen !== undefined || !isPureQuery(requestOf(props.text)),
      onSelect: () => setDialog("save"),
    });
    if (chosen)
      items.push({ label: `Delete view ${chosen.name}…`, icon: "x", danger: true, onSelect: () => setDialog(chosen) });
  }
  return (
    <div className={`views ${props.className ?? ""}`} role="group" aria-label="Saved views">
      <button type="button" aria-pressed={props.text.trim() === "" && !chosen} onClick={() => props.onPick(null)}>
        All
      </button>
      {shown.map((view) => (
        <button
          key={view.name}
          type="button"
          aria-pressed={view === chosen}
          title={view.query}
          onClick={() => props.onPick(view)}
        >
          {view.name}
          {counts[view.name] && <span className="count">{matching(counts[view.name]!)}</span>}
        </button>
      ))}
      {items.length > 0 && (
        <span className="inline-menu">
          <MenuButton label="Views" className="btn ghost icon sm" items={items}>
            <Icon name="more" size={14} />
          </MenuButton>
        </span>
      )}
      {dialog === "save" && (
        <SaveView text={props.text} taken={views} onClose={() => setDialog(null)} onSaved={props.onPick} />
      )}
      {dialog !== null && dialog !== "save" && (
        <DeleteView view={dialog} onClose={() => setDialog(null)} onDeleted={() => props.onPick(null)} />
      )}
    </div>
  );
}

function SaveView(props: { text: string; taken: View[]; onClose: () => void; onSaved: (view: View) => void }) {
  const [name, setName] = useState("");
  const client = useQueryClient();
  const query = props.text.trim();
  const replaced = props.taken.find((view) => view.name === name.trim());
  const save = useMutation({
    mutationFn: () =>
      body(api.PUT("/api/v1/views/{name}", { params: { path: { name: name.trim() } }, body: { query } })),
    onSuccess: async (view) => {
      await client.invalidateQueries({ queryKey: ["views"] });
      toast(`Saved view ${view.name}`);
      props.onSaved(view);
      props.onClose();
    },
  });
  return (
    <FormDialog
      title="Save view"
      submit={replaced ? `Replace ${replaced.name}` : "Save"}
      onClose={props.onClose}
      onSubmit={() => save.mutate()}
      busy={save.isPending}
      disabled={name.trim() === ""}
    >
      <label className="field">
        <span>Name</span>
        <input className="input" maxLength={200} value={name} onChange={(event) => setName(event.target.value)} />
        <small>Everyone in the namespace sees it.</small>
      </label>
      <code className="code">{query}</code>
      {replaced && <p className="muted">The view {replaced.name} has another query now; it will be replaced.</p>}
      {save.error && <p className="form-error">{save.error.message}</p>}
    </FormDialog>
  );
}

function DeleteView({ view, onClose, onDeleted }: { view: View; onClose: () => void; onDeleted: () => void }) {
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: () => api.DELETE("/api/v1/views/{name}", { params: { path: { name: view.name } } }),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ["views"] });
      toast(`Deleted view ${view.name}`);
      onDeleted();
      onClose();
    },
  });
  return (
    <FormDialog
      title={`Delete view ${view.name}?`}
      submit="Delete view"
      danger
      onClose={onClose}
      onSubmit={() => remove.mutate()}
      busy={remove.isPending}
    >
      <p>It goes for everyone in the namespace. No run changes.</p>
      <code className="code">{view.query}</code>
      {remove.error && <p className="form-error">{remove.error.message}</p>}
    </FormDialog>
  );
}
