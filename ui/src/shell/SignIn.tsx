import { type FormEvent, useState } from "react";
import type { Session, SessionState } from "../api/session";
import { Logo } from "../parts/icons";

/** The page before a session: an API key, or the identity provider. It leads back to the address that was asked for. */
export function SignIn({ session, signIn }: { session: Session; signIn: SessionState["signIn"] }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const next = `${location.pathname}${location.search}`;
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError("");
    try {
      await signIn(key.trim());
    } catch (failure) {
      setError((failure as Error).message);
      setBusy(false);
    }
  };
  if (session.sign_in.dev)
    return (
      <SignInFrame>
        <p>
          This is the server of <code>perdure dev</code>. Open the link that it printed: it signs this browser in.
        </p>
      </SignInFrame>
    );
  return (
    <SignInFrame>
      {session.sign_in.oidc && (
        <a className="btn primary wide-btn" href={`/auth/oidc/start?next=${encodeURIComponent(next)}`}>
          Sign in with {session.sign_in.oidc_name ?? "your identity provider"}
        </a>
      )}
      {session.sign_in.oidc && session.sign_in.api_key && <p className="or faint">or</p>}
      {session.sign_in.api_key && (
        <form onSubmit={submit}>
          <label className="field">
            <span>API key</span>
            <input
              className="input mono"
              type="password"
              autoComplete="off"
              spellCheck={false}
              value={key}
              onChange={(event) => setKey(event.target.value)}
              aria-describedby="key-help"
              aria-invalid={error !== ""}
            />
            <small id="key-help">
              Made with <code>perdure api-key create</code>. It stays on the server; this browser gets a session.
            </small>
          </label>
          {error && (
            <p className="form-error" role="alert">
              {error}
            </p>
          )}
          <button type="submit" className="btn primary wide-btn" disabled={busy || key.trim() === ""}>
            {busy ? "Signing in…" : "Sign in"}
          </button>
        </form>
      )}
    </SignInFrame>
  );
}

function SignInFrame({ children }: { children: React.ReactNode }) {
  return (
    <main className="sign-in">
      <section className="card" aria-label="Sign in">
        <header>
          <Logo />
          <h1>Sign in to Perdure</h1>
        </header>
        {children}
      </section>
    </main>
  );
}
