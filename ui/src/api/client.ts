/**
 * The typed client of the REST API. Its types are generated from the OpenAPI document of the server (`npm run generate`).
 *
 * Every request carries the chosen namespace; one that changes something carries the CSRF token of the session.
 */
import createClient, { type Middleware } from "openapi-fetch";
import { takeEarly } from "./early";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Problem = Schemas["Problem"];

/** An answer that is an error: what happened, its code, and a page about it. */
export class ApiError extends Error {
  constructor(
    readonly problem: Problem,
    readonly retryAfterS: number | null = null,
  ) {
    super(problem.detail);
    this.name = "ApiError";
  }

  get code(): string {
    return this.problem.code;
  }

  get status(): number {
    return this.problem.status;
  }
}

/** No answer at all: the server or the network is away. */
export class Unreachable extends Error {
  constructor() {
    super("The server does not answer.");
    this.name = "Unreachable";
  }
}

/** `ownNamespace` is used by the server where a request names none. */
export const credentials = { csrf: "", namespace: "", ownNamespace: "" };

/** For requests that do not go through the client. */
export function namespaceHeader(): Record<string, string> {
  return credentials.namespace ? { "Perdure-Namespace": credentials.namespace } : {};
}

const listeners = new Set<() => void>();

/** Called when a request is answered with 401: the session has ended. */
export function onSignedOut(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function signedOut(): void {
  for (const listener of listeners) listener();
}

const common: Middleware = {
  onRequest({ request }) {
    if (credentials.namespace) request.headers.set("Perdure-Namespace", credentials.namespace);
    if (request.method !== "GET" && credentials.csrf) request.headers.set("Perdure-Csrf", credentials.csrf);
    return request;
  },
  async onResponse({ response }) {
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status === 401) signedOut();
    const after = Number(response.headers.get("Retry-After"));
    throw new ApiError(problem, Number.isFinite(after) && after > 0 ? after : null);
  },
  onError({ error }) {
    return error instanceof ApiError || (error instanceof DOMException && error.name === "AbortError")
      ? (error as Error)
      : new Unreachable();
  },
};

async function problemOf(response: Response): Promise<Problem> {
  const fallback = {
    type: "/errors",
    title: response.statusText,
    status: response.status,
    code: `http_${response.status}`,
    detail: `The server answered ${response.status} ${response.statusText}.`,
    instance: new URL(response.url).pathname,
    problems: null,
  };
  if (!response.headers.get("Content-Type")?.includes("json")) return fallback;
  try {
    return { ...fallback, ...((await response.json()) as Problem) };
  } catch {
    return fallback;
  }
}

export const api = createClient<paths>({
  baseUrl: location.origin,
  fetch: (request) => takeEarly(request, credentials.ownNamespace) ?? fetch(request),
});
api.use(common);

/** The body of an answer. Errors are thrown by the client. */
export async function body<T>(answer: Promise<{ data?: T }>): Promise<NonNullable<T>> {
  return (await answer).data as NonNullable<T>;
}
