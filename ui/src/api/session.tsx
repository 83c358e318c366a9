/** Whose session this is, what it may do, and the namespace that it works in. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo } from "react";
import { useUrl } from "../shell/url";
import { api, body, credentials, onSignedOut, type Schemas } from "./client";
import { keepNamespace, keptNamespace } from "./early";

export type Permission = NonNullable<Schemas["Identity"]["scopes"]>[number];

export type Session = Schemas["SessionInfo"];

export interface SessionState {
  session: Session;
  namespace: string;
  may: (permission: Permission) => boolean;
  signIn: (apiKey: string) => Promise<void>;
  signOut: () => Promise<void>;
  chooseNamespace: (name: string) => void;
}

const Context = createContext<SessionState | null>(null);

export function useSession(): SessionState {
  const state = useContext(Context);
  if (!state) throw new Error("useSession outside of SessionProvider");
  return state;
}

/** Renders `children` for a session, `signedOut` without one, `loading` before it is known. */
export function SessionProvider(props: {
  children: ReactNode;
  signedOut: (session: Session, signIn: SessionState["signIn"]) => ReactNode;
  loading: ReactNode;
  failed: (error: Error, retry: () => void) => ReactNode;
}) {
  const client = useQueryClient();
  const url = useUrl();
  const query = useQuery({
    queryKey: ["session"],
    queryFn: () => body(api.GET("/api/v1/session")),
    staleTime: 60_000,
    refetchOnWindowFocus: true,
  });
  const session = query.data;
  const asked = url.get("ns");
  const namespace = session?.signed_in ? chosenNamespace(session, asked) : "";
  credentials.csrf = session?.csrf ?? "";
  credentials.namespace = namespace;
  credentials.ownNamespace = session?.namespace ?? "";

  useEffect(() => onSignedOut(() => void client.invalidateQueries({ queryKey: ["session"] })), [client]);

  const signIn = useCallback(
    async (apiKey: string) => {
      const found = await body(api.POST("/api/v1/session", { body: { api_key: apiKey } }));
      client.setQueryData(["session"], found);
    },
    [client],
  );
  const signOut = useCallback(async () => {
    await api.DELETE("/api/v1/session");
    client.removeQueries({ predicate: (q) => q.queryKey[0] !== "session" });
    await client.invalidateQueries({ queryKey: ["session"] });
  }, [client]);
  const chooseNamespace = useCallback(
    (name: string) => {
      keepNamespace(name);
      client.removeQueries({ predicate: (q) => q.queryKey[0] !== "session" });
      location.assign(`/?ns=${encodeURIComponent(name)}`);
    },
    [client],
  );
  const state = useMemo<SessionState | null>(
    () =>
      session?.signed_in
        ? {
            session,
            namespace,
            may: (permission) => session.permissions.includes(permission),
            signIn,
            signOut,
            chooseNamespace,
          }
        : null,
    [session, namespace, signIn, signOut, chooseNamespace],
  );

  if (session === undefined) return query.error ? props.failed(query.error, () => void query.refetch()) : props.loading;
  if (!state) return props.signedOut(session, signIn);
  return <Context value={state}>{props.children}</Context>;
}

function chosenNamespace(session: Session, asked: string | null): string {
  const allowed = session.namespaces;
  for (const name of [asked, keptNamespace(), session.namespace]) {
    if (name && (allowed.length === 0 || allowed.includes(name))) {
      if (name === asked) keepNamespace(name);
      return name;
    }
  }
  return allowed[0] ?? "default";
}
