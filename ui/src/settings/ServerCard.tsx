import { useQuery } from "@tanstack/react-query";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { duration } from "../format/durations";
import { bytes, count, plural } from "../format/numbers";
import { Copy } from "../parts/Copy";
import { Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";

/** How the server that answers is set up: for how long it keeps what, and its limits. */
export function ServerCard() {
  const { session } = useSession();
  const query = useQuery({ queryKey: ["server"], queryFn: () => body(api.GET("/api/v1/server")) });
  const server = query.data;
  const ways = session.sign_in;
  const signIn = [
    ways.api_key && "API key",
    ways.oidc && (ways.oidc_name ?? "OpenID Connect"),
    ways.dev && "open, on this machine",
  ];
  return (
    <section className="card" aria-label="Server">
      <header>
        <h2>Server</h2>
      </header>
      {query.error ? (
        <Failed error={query.error} retry={() => void query.refetch()} />
      ) : !server ? (
        <Skeleton rows={5} height={28} />
      ) : (
        <dl className="kv settings-kv">
          <dt>Version</dt>
          <dd>Perdure {server.version}</dd>
          <dt>Address</dt>
          <dd className="row">
            <span className="mono">{server.public_url}</span>
            <Copy text={server.public_url} label="Copy the server’s address" />
          </dd>
          <dt>Engine</dt>
          <dd>
            <span className="mono">{server.engine}</span>, up since <Time at={server.started_at} />
          </dd>
          <dt>Sign-in</dt>
          <dd>{signIn.filter(Boolean).join(", ")}</dd>
          <dt>Keeps ended runs</dt>
          <dd>{keptDays(server.keeps.runs_days)}</dd>
          <dt>Keeps the audit log</dt>
          <dd>{keptDays(null)}</dd>
          <dt>Keeps run counts</dt>
          <dd>{keptDays(server.keeps.counts_days)}</dd>
          <dt>Keeps decided approvals</dt>
          <dd>{keptDays(server.keeps.decided_approvals_days)}</dd>
          <dt>Values</dt>
          <dd>
            over {bytes(server.limits.payload_inline_bytes)} in{" "}
            {server.payload_store === "database" ? "the database" : `an object store (${server.payload_store})`}, unused
            ones for {duration(server.keeps.unused_payloads_s)}
          </dd>
          <dt>Limits</dt>
          <dd>
            {bytes(server.limits.payload_bytes_max)} a value in the database, {count(server.limits.runs_max)} runs in
            memory; an engine that is silent for {duration(server.limits.lease_s)} loses its runs
          </dd>
        </dl>
      )}
    </section>
  );
}

export function keptDays(days: number | null): string {
  return days === null ? "for good" : plural(days, "day");
}
