/**
 * Asks for what a page shows first, while most of the script is still loading. The client takes these answers instead of asking again.
 *
 * Nothing but this file and the names of the pages is loaded before it runs: import nothing large here.
 */
const NAMESPACE_KEY = "perdure.namespace";
/** An answer that nothing took by then is too old to show. */
const KEPT_MS = 5_000;
/** Parts that the timeline of a run has. */
export const TIMELINE_BINS = 120;

interface Asked {
  at: number;
  /** Null: the session's own. */
  namespace: string | null;
  answer: Promise<Response>;
}

const asked = new Map<string, Asked>();

/** What the page at an address asks for at once; what takes longest comes first, because a browser has few connections. */
export function firstRequests(path: string): string[] {
  const run = /^\/runs\/([^/]+)$/.exec(path)?.[1];
  if (!run) return ["/api/v1/session"];
  return [`/api/v1/runs/${run}/timeline?bins=${TIMELINE_BINS}`, "/api/v1/session", `/api/v1/runs/${run}`];
}

export function askEarly(place: { origin: string; pathname: string; search: string }): void {
  const namespace = new URLSearchParams(place.search).get("ns") ?? keptNamespace();
  const headers: Record<string, string> = namespace ? { "Perdure-Namespace": namespace } : {};
  for (const path of firstRequests(place.pathname)) {
    const forAll = path === "/api/v1/session";
    const answer = fetch(place.origin + path, { headers: forAll ? {} : headers });
    answer.catch(() => undefined); // the one who takes it hears of it
    asked.set(place.origin + path, { at: performance.now(), namespace: forAll ? null : namespace, answer });
  }
}

/**
 * The answer to such a request, once; null if it was not asked early or as another namespace. `own` is the namespace of the session.
 * A request that changes something makes all of them old: a sign-in, above all.
 */
export function takeEarly(request: Request, own: string): Promise<Response> | null {
  if (request.method !== "GET") asked.clear();
  const found = asked.get(request.url);
  if (!found) return null;
  asked.delete(request.url);
  const wanted = request.headers.get("Perdure-Namespace");
  const same = wanted === null || (found.namespace ?? own) === wanted;
  return same && performance.now() - found.at < KEPT_MS ? found.answer : null;
}

/** The namespace that the person chose last. */
export function keptNamespace(): string | null {
  try {
    return localStorage.getItem(NAMESPACE_KEY);
  } catch {
    return null;
  }
}

export function keepNamespace(name: string): void {
  try {
    localStorage.setItem(NAMESPACE_KEY, name);
  } catch {
    // Private windows may refuse; the URL still has it.
  }
}
