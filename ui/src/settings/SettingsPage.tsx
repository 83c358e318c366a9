/** Settings: the session, the look, the server, keys, namespaces, calendars. */
import { Link } from "@tanstack/react-router";
import { useSession } from "../api/session";
import { sentenceCase } from "../parts/Status";
import { Segments } from "../parts/Tabs";
import { Time } from "../parts/Time";
import { TopBar } from "../shell/TopBar";
import { setTheme, type Theme, useTheme } from "../shell/theme";
import { ApiKeys } from "./ApiKeys";
import { Calendars } from "./Calendars";
import { Namespaces } from "./Namespaces";
import { ServerCard } from "./ServerCard";
import "./settings.css";

export function SettingsPage() {
  const { may } = useSession();
  return (
    <>
      <TopBar title="Settings" />
      <div className="scroll settings">
        <div className="settings-pair">
          <SessionCard />
          <Appearance />
        </div>
        <ServerCard />
        {may("admin") && <ApiKeys />}
        {may("admin") && <Namespaces />}
        <Calendars />
        <section className="card" aria-label="Elsewhere">
          <header>
            <h2>Elsewhere</h2>
          </header>
          <ul className="elsewhere">
            <li>
              <Link className="link" to={"/events" as never}>
                Webhooks
              </Link>{" "}
              <span className="muted">are with the events that they send.</span>
            </li>
            <li>
              <Link className="link" to={"/limits" as never}>
                Limits and pauses
              </Link>{" "}
              <span className="muted">are under Limits.</span>
            </li>
          </ul>
        </section>
      </div>
    </>
  );
}

function SessionCard() {
  const { session, namespace, signOut } = useSession();
  return (
    <section className="card" aria-label="Session">
      <header>
        <h2 className="grow">Session</h2>
        {!session.sign_in.dev && (
          <button type="button" className="btn sm" onClick={() => void signOut()}>
            Sign out
          </button>
        )}
      </header>
      <dl className="kv settings-kv">
        <dt>Signed in as</dt>
        <dd className="strong">{session.name ?? session.subject}</dd>
        <dt>Credential</dt>
        <dd className="mono">{session.subject}</dd>
        <dt>Role</dt>
        <dd>{sentenceCase(session.role ?? "–")}</dd>
        <dt>May</dt>
        <dd>{[...session.permissions].sort().join(", ")}</dd>
        <dt>Namespace</dt>
        <dd>{namespace}</dd>
        <dt>Expires</dt>
        <dd>{session.expires_at ? <Time at={session.expires_at} /> : "with its key"}</dd>
      </dl>
    </section>
  );
}

const THEMES: { id: Theme; label: string }[] = [
  { id: "system", label: "System" },
  { id: "light", label: "Light" },
  { id: "dark", label: "Dark" },
];

function Appearance() {
  const theme = useTheme();
  return (
    <section className="card" aria-label="Appearance">
      <header>
        <h2>Appearance</h2>
      </header>
      <dl className="kv settings-kv">
        <dt>Theme</dt>
        <dd>
          <Segments label="Theme" options={THEMES} value={theme} onChange={(id) => setTheme(id as Theme)} />
        </dd>
        <dt>Times</dt>
        <dd>in {Intl.DateTimeFormat().resolvedOptions().timeZone}, the zone of this browser</dd>
        <dt>Keys</dt>
        <dd>
          <kbd>?</kbd> shows them, <kbd>t</kbd> switches the theme
        </dd>
      </dl>
    </section>
  );
}
