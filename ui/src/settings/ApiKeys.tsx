import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { count } from "../format/numbers";
import { ActError, useAct } from "../parts/acts";
import { FormDialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { visible } from "../parts/Payload";
import { Secret } from "../parts/Secret";
import { Status } from "../parts/Status";
import { Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";

type ApiKey = Schemas["ApiKey"];
type Role = ApiKey["role"];
const PAGE = 100;
const ROLES: [Role, string][] = [
  ["viewer", "viewer: look"],
  ["operator", "operator: look, start, cancel, retry, approve"],
  ["developer", "developer: all that, and publish workflows"],
  ["worker", "worker: run tasks, nothing else"],
  ["admin", "admin: everything, keys and namespaces too"],
];

export function ApiKeys() {
  const [isMaking, setMaking] = useState(false);
  const [revoking, setRevoking] = useState<ApiKey | null>(null);
  const query = useInfiniteQuery({
    queryKey: ["api-keys"],
    queryFn: ({ pageParam }) =>
      body(api.GET("/api/v1/api-keys", { params: { query: { limit: PAGE, cursor: pageParam || undefined } } })),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
  });
  const keys = query.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <section className="card" aria-label="API keys">
      <header>
        <h2 className="grow">API keys {query.data && <span className="count">{count(keys.length)}</span>}</h2>
        <button type="button" className="btn sm" onClick={() => setMaking(true)}>
          <Icon name="plus" size={14} />
          New key
        </button>
      </header>
      {query.error ? (
        <Failed error={query.error} retry={() => void query.refetch()} />
      ) : query.isPending ? (
        <Skeleton rows={3} />
      ) : (
        <div className="table-scroll">
          <KeyTable keys={keys} onRevoke={setRevoking} />
        </div>
      )}
      {query.hasNextPage && (
        <div className="list-foot">
          <button type="button" className="btn sm" onClick={() => void query.fetchNextPage()}>
            More keys
          </button>
        </div>
      )}
      {isMaking && <NewKeyDialog onClose={() => setMaking(false)} />}
      {revoking && <RevokeDialog apiKey={revoking} onClose={() => setRevoking(null)} />}
    </section>
  );
}

function KeyTable({ keys, onRevoke }: { keys: ApiKey[]; onRevoke: (key: ApiKey) => void }) {
  return (
    <table className="grid" aria-label="API keys">
      <thead>
        <tr>
          <th>Name</th>
          <th>Id</th>
          <th>State</th>
          <th>Role</th>
          <th>Namespace</th>
          <th>Last used</th>
          <th>Expires</th>
          <th>Created</th>
          <th>
            <span className="sr">Acts</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {keys.map((key) => (
          <tr key={key.id} className={key.revoked_at ? "off" : undefined}>
            <td className="strong">{visible(key.name)}</td>
            <td className="mono muted">{key.id}</td>
            <td>
              <KeyState apiKey={key} />
            </td>
            <td title={key.scopes ? `only ${key.scopes.join(", ")}` : undefined}>
              {key.role}
              {key.scopes && <span className="faint">, narrowed</span>}
            </td>
            <td className="muted">{key.namespace ?? "all"}</td>
            <td>{key.last_used_at ? <Time at={key.last_used_at} /> : <span className="faint">never</span>}</td>
            <td>{key.expires_at ? <Time at={key.expires_at} /> : <span className="faint">never</span>}</td>
            <td className="muted" title={`by ${key.created_by}`}>
              <Time at={key.created_at} />
            </td>
            <td className="acts-cell">
              {!key.revoked_at && (
                <button
                  type="button"
                  className="btn ghost sm"
                  aria-label={`Revoke ${key.name}`}
                  onClick={() => onRevoke(key)}
                >
                  Revoke…
                </button>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function KeyState({ apiKey }: { apiKey: ApiKey }) {
  if (apiKey.revoked_at) return <Status status="cancelled" word="Revoked" />;
  if (apiKey.expires_at && Date.parse(apiKey.expires_at) < Date.now())
    return <Status status="skipped" word="Expired" />;
  return <Status status="success" word="Valid" />;
}

function NewKeyDialog({ onClose }: { onClose: () => void }) {
  const { session, namespace } = useSession();
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("operator");
  const [space, setSpace] = useState(namespace);
  const [expires, setExpires] = useState("90d");
  const act = useAct({
    act: () =>
      body(
        api.POST("/api/v1/api-keys", {
          body: { name: name.trim(), role, namespace: space || null, expires_in: expires.trim() || null },
        }),
      ),
    refresh: [["api-keys"]],
    inForm: true,
  });
  const made = act.data;
  return (
    <FormDialog
      title="New API key"
      submit={made ? "Done" : "Create key"}
      busy={act.isPending}
      disabled={!made && !name.trim()}
      onClose={onClose}
      onSubmit={() => (made ? onClose() : act.mutate())}
    >
      {made ? (
        <Secret label={`API key ${made.name}`} value={made.secret} />
      ) : (
        <div className="two-fields">
          <label className="field">
            <span>Name</span>
            <input
              className="input"
              value={name}
              onChange={(event) => setName(event.target.value)}
              placeholder="ci, or a person"
            />
            <small>Approvals ask people by this name</small>
          </label>
          <label className="field">
            <span>Valid for</span>
            <input
              className="input"
              value={expires}
              onChange={(event) => setExpires(event.target.value)}
              spellCheck={false}
            />
            <small>Such as 30d; without end if empty</small>
          </label>
          <label className="field all">
            <span>Role</span>
            <select className="input" value={role} onChange={(event) => setRole(event.target.value as Role)}>
              {ROLES.map(([id, label]) => (
                <option key={id} value={id}>
                  {label}
                </option>
              ))}
            </select>
          </label>
          <label className="field all">
            <span>Namespace</span>
            <select className="input" value={space} onChange={(event) => setSpace(event.target.value)}>
              <option value="">every namespace</option>
              {[...new Set([namespace, ...session.namespaces])].map((n) => (
                <option key={n} value={n}>
                  {n}
                </option>
              ))}
            </select>
          </label>
        </div>
      )}
      <ActError error={act.error} />
    </FormDialog>
  );
}

function RevokeDialog({ apiKey, onClose }: { apiKey: ApiKey; onClose: () => void }) {
  const act = useAct({
    act: () => api.DELETE("/api/v1/api-keys/{id}", { params: { path: { id: apiKey.id } } }),
    said: () => `${apiKey.name} is revoked`,
    refresh: [["api-keys"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={`Revoke ${apiKey.name}`}
      submit={`Revoke ${apiKey.name}`}
      danger
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p>
        Requests with the key <code>{apiKey.id}</code> are refused from now on, and its sessions end. It cannot be
        undone.
      </p>
      <ActError error={act.error} />
    </FormDialog>
  );
}
