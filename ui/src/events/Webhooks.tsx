/** Webhooks: addresses that turn signed requests into events or into signals. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, body, type Schemas } from "../api/client";
import { useSession } from "../api/session";
import { count } from "../format/numbers";
import { ActError, useAct } from "../parts/acts";
import { Copy } from "../parts/Copy";
import { FormDialog } from "../parts/Dialog";
import { Icon } from "../parts/icons";
import { MenuButton } from "../parts/Menu";
import { Secret } from "../parts/Secret";
import { Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";

type Webhook = Schemas["Webhook"];
const SHOWN = 200;

export function Webhooks() {
  const { may } = useSession();
  const [dialog, setDialog] = useState<{ kind: "new" } | { kind: "rotate" | "delete"; hook: Webhook } | null>(null);
  const query = useQuery({
    queryKey: ["webhooks"],
    queryFn: () => body(api.GET("/api/v1/webhooks", { params: { query: { limit: SHOWN } } })),
    select: (page) => page.items,
  });
  const close = () => setDialog(null);
  return (
    <section aria-label="Webhooks" id="webhooks">
      <div className="sec sec-next">
        <h2>Webhooks</h2>
        {query.data && <span className="count">{count(query.data.length)}</span>}
        <span className="grow" />
        {may("develop") && (
          <button type="button" className="btn sm" onClick={() => setDialog({ kind: "new" })}>
            <Icon name="plus" size={14} />
            New webhook
          </button>
        )}
      </div>
      {query.error ? (
        <Failed error={query.error} retry={() => void query.refetch()} />
      ) : !query.data ? (
        <Skeleton rows={2} />
      ) : query.data.length === 0 ? (
        <p className="faint sec-empty">
          None. A webhook lets a service without an API key send an event, or a signal to one run:{" "}
          <code>perdure webhook create shop --event order.paid</code>
        </p>
      ) : (
        <table className="grid webhook-table" aria-label="Webhooks">
          <thead>
            <tr>
              <th>Webhook</th>
              <th>Target</th>
              <th>Address to POST to</th>
              <th>Created</th>
              {may("develop") && (
                <th>
                  <span className="sr">Acts</span>
                </th>
              )}
            </tr>
          </thead>
          <tbody>
            {query.data.map((hook) => (
              <tr key={hook.name}>
                <td className="strong">{hook.name}</td>
                <td className="mono">{target(hook)}</td>
                <td>
                  <span className="hook-url">
                    <code className="clip">{hook.url}</code>
                    <Copy text={hook.url} label={`Copy the address of ${hook.name}`} />
                  </span>
                </td>
                <td className="muted" title={`by ${hook.created_by}`}>
                  <Time at={hook.created_at} />
                </td>
                {may("develop") && (
                  <td className="acts-cell">
                    <span className="inline-menu hook-menu">
                      <MenuButton
                        label={`More about ${hook.name}`}
                        className="btn ghost icon sm"
                        menuClassName="right-menu"
                        items={[
                          {
                            label: "Rotate secret…",
                            icon: "retry",
                            onSelect: () => setDialog({ kind: "rotate", hook }),
                          },
                          {
                            label: "Delete…",
                            icon: "x",
                            danger: true,
                            onSelect: () => setDialog({ kind: "delete", hook }),
                          },
                        ]}
                      >
                        <Icon name="more" size={14} />
                      </MenuButton>
                    </span>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {dialog?.kind === "new" && <NewDialog onClose={close} />}
      {dialog?.kind === "rotate" && <RotateDialog hook={dialog.hook} onClose={close} />}
      {dialog?.kind === "delete" && <DeleteDialog hook={dialog.hook} onClose={close} />}
    </section>
  );
}

/** A webhook signed by Standard Webhooks, with a secret that the server makes. */
const STANDARD = {
  scheme: "standard",
  key: "",
  signal: "",
  run: "",
  value: "",
  start: "",
  input: "",
  header: "",
  algorithm: "sha256",
  prefix: "",
  encoding: "hex",
  secret: "",
} as const;

/** The event that a webhook sends, or the signal and its run. */
function target(hook: Webhook): string {
  if (!hook.signal) return hook.event ?? "";
  return `signal ${hook.signal} to ${hook.run}${hook.start ? `, starts ${hook.start}` : ""}`;
}

function NewDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [event, setEvent] = useState("");
  const act = useAct({
    act: () =>
      body(
        api.PUT("/api/v1/webhooks/{name}", {
          params: { path: { name: name.trim() } },
          body: { ...STANDARD, event: event.trim() },
        }),
      ),
    refresh: [["webhooks"]],
    inForm: true,
  });
  const made = act.data;
  return (
    <FormDialog
      title="New webhook"
      submit={made ? "Done" : "Create webhook"}
      busy={act.isPending}
      disabled={!made && (!name.trim() || !event.trim())}
      onClose={onClose}
      onSubmit={() => (made ? onClose() : act.mutate())}
    >
      {made ? (
        <Made hook={made} />
      ) : (
        <div className="two-fields">
          <label className="field">
            <span>Name</span>
            <input
              className="input"
              value={name}
              onChange={(change) => setName(change.target.value)}
              spellCheck={false}
            />
            <small>Part of the address: letters, digits, dot, dash, underscore</small>
          </label>
          <label className="field">
            <span>Event that a request becomes</span>
            <input
              className="input mono"
              value={event}
              onChange={(change) => setEvent(change.target.value)}
              placeholder="order.paid"
              spellCheck={false}
            />
          </label>
        </div>
      )}
      <ActError error={act.error} />
    </FormDialog>
  );
}

function Made({ hook }: { hook: Schemas["WebhookWithSecret"] }) {
  return (
    <>
      <p className="hook-url">
        <code className="clip">{hook.url}</code>
        <Copy text={hook.url} label="Copy the address" />
      </p>
      {hook.secret ? (
        <Secret label="Secret that signs requests" value={hook.secret} />
      ) : (
        <p className="muted">
          A webhook of this name existed before; it keeps its secret and now sends {target(hook)}.
        </p>
      )}
    </>
  );
}

function RotateDialog({ hook, onClose }: { hook: Webhook; onClose: () => void }) {
  const act = useAct({
    act: () => body(api.POST("/api/v1/webhooks/{name}/rotate", { params: { path: { name: hook.name } } })),
    inForm: true,
  });
  return (
    <FormDialog
      title={`Rotate the secret of ${hook.name}`}
      submit={act.data ? "Done" : "Rotate secret"}
      danger={!act.data}
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => (act.data ? onClose() : act.mutate())}
    >
      {act.data?.secret ? (
        <Secret label="New secret" value={act.data.secret} />
      ) : (
        <p>
          The old secret stops working at once: requests signed with it are refused until the sender has the new one.
        </p>
      )}
      <ActError error={act.error} />
    </FormDialog>
  );
}

function DeleteDialog({ hook, onClose }: { hook: Webhook; onClose: () => void }) {
  const act = useAct({
    act: () => api.DELETE("/api/v1/webhooks/{name}", { params: { path: { name: hook.name } } }),
    said: () => `${hook.name} deleted`,
    refresh: [["webhooks"]],
    inForm: true,
    onDone: onClose,
  });
  return (
    <FormDialog
      title={`Delete ${hook.name}`}
      submit={`Delete ${hook.name}`}
      danger
      busy={act.isPending}
      onClose={onClose}
      onSubmit={() => act.mutate()}
    >
      <p>Requests to its address are refused from now on. Events and signals that it sent stay.</p>
      <ActError error={act.error} />
    </FormDialog>
  );
}
