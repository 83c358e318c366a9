import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { count } from "../format/numbers";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";

const SHOWN = 500;

export function Namespaces() {
  const { namespace } = useSession();
  const [isMaking, setMaking] = useState(false);
  const [deleting, setDeleting] = useState<string | null>(null);
  const query = useQuery({
    queryKey: ["namespaces"],
    queryFn: () => body(api.GET("/api/v1/namespaces", { params: { query: { limit: SHOWN } } })),
    select: (page) => page.items,
  });
  return (
    <section className="card" aria-label="Namespaces">
      <header>
        <h2 className="grow">Namespaces {query.data && <span className="count">{count(query.data.length)}</span>}</h2>
        <button type="button" className="btn sm" onClick={() => setMaking(true)}>
          <Icon name="plus" size={14} />
          New namespace
        </button>
      </header>
      {query.error ? (
        <Failed error={query.error} retry={() => void query.refetch()} />
      ) : !query.data ? (
        <Skeleton rows={2} />
      ) : (
        <table className="grid" aria-label="Namespaces">
          <thead>
            <tr>
              <th>Namespace</th>
              <th>Created</th>
              <th>
                <span className="sr">Acts</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {query.data.map((space) => (
              <tr key={space.name}>
                <td className="strong">
                  {space.name} {space.name === namespace && <span className="tag accent">this one</span>}
                </td>
                <td className="muted">
                  <Time at={space.created_at} />
                </td>
                <td className="acts-cell">
                  {space.name !== namespace && (
                    <button
                      type="button"
                      className="btn ghost sm"
                      aria-label={`Delete ${space.name}`}
                      onClick={() => setDeleting(space.name)}
                    >
                      Delete…
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {isMaking && <NewDialog onClose={() => setMaking(false)} />}
      {deleting && <DeleteDialog name={deleting} onClose={() => setDeleting(null)} />}
    </section>
  );
}

function NewDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const act = useAct({
    act: () => body(api.POST("/api/v1/namespaces", { body: { name: name.trim() } })),
    said: (made) => `Namespace ${made.name} is there`,
    refresh: [["namespaces"], ["session"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title="New namespace"
      submit="Create namespace"
      busy={act.isPending}
      disabled={!name.trim()}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p className="muted">Runs, workflows, schedules, limits and keys of one namespace are not seen from another.</p>
      <label className="field">
        <span>Name</span>
        <input className="input" value={name} onChange={(event) => setName(event.target.value)} spellCheck={false} />
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}

function DeleteDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const [typed, setTyped] = useState("");
  const act = useAct({
    act: () => api.DELETE("/api/v1/namespaces/{name}", { params: { path: { name } } }),
    said: () => `Namespace ${name} deleted`,
    refresh: [["namespaces"], ["api-keys"], ["session"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={`Delete namespace ${name}`}
      submit={`Delete ${name}`}
      danger
      busy={act.isPending}
      disabled={typed !== name}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p>Its keys end and no credential reaches it any more. Its data stays until retention drops it.</p>
      <label className="field">
        <span>
          Type <code>{name}</code> to confirm
        </span>
        <input
          className="input"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
          spellCheck={false}
          autoComplete="off"
        />
      </label>
      <ActError error={act.error} />
    </FormDialog>
  );
}
