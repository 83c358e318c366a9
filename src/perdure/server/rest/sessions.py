"""Signing in and out with a browser: by API key, or through an identity provider. REST alone: other programs send their credential each time."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from perdure.core.access import Principal, namespace_of
from perdure.core.errors import Conflict, NotFound, PerdureError, Unauthenticated
from perdure.core.limits import NAMESPACES_SHOWN_MAX
from perdure.core.version import VERSION
from perdure.server.auth.addresses import client_of
from perdure.server.auth.authenticator import TOKEN_CHARS_MAX, OpenAccess
from perdure.server.auth.sign_in import FLOW_S, NEXT_CHARS_MAX, OidcSignIn
from perdure.server.auth.web_sessions import SignedIn, WebSessions
from perdure.server.context import Server
from perdure.server.rest import models as m
from perdure.server.rest import session_cookies as cookies
from perdure.server.rest import views
from perdure.server.rest.guard import Anyone, GuardedRoute, identify
from perdure.server.rest.pages import render
from perdure.server.rest.problems import responses

CALLBACK: Final = "/auth/oidc/callback"


class SignInRequest(m.Body):
    api_key: Annotated[str, Field(min_length=1, max_length=TOKEN_CHARS_MAX)]


class SignInWays(BaseModel):
    api_key: bool
    oidc: bool
    oidc_name: str | None = Field(description="The identity provider's name, for the button.")
    dev: bool = Field(description="The server of `perdure dev`: the link that it printed signs a browser in.")


class SessionInfo(BaseModel):
    signed_in: bool
    subject: str | None = None
    name: str | None = Field(default=None, description="The name of the key or of the user.")
    role: m.RoleWord | None = None
    permissions: list[m.PermissionWord] = []
    namespace: str | None = Field(default=None, description="What requests without `Perdure-Namespace` work in.")
    namespaces: list[str] = Field(default=[], description="Those that may be chosen, at most 1000.")
    csrf: str | None = Field(
        default=None,
        description="For the header `Perdure-Csrf` of requests that change something, with a session's cookie.",
    )
    expires_at: m.Moment | None = None
    sign_in: SignInWays
    version: str


class DeviceSignIn(BaseModel):
    """What `perdure login` needs to know of the identity provider."""

    issuer: str
    client_id: str
    scope: str
    audience: str
    device_authorization_endpoint: str
    token_endpoint: str


router = APIRouter(tags=["sessions"], route_class=GuardedRoute)


@router.get("/session", responses=responses(429))
async def get_session(_: Anyone, request: Request) -> SessionInfo:
    """Whether this browser is signed in, as whom, and how it can sign in."""
    server: Server = request.app.state.server
    try:
        principal, session = await identify(server, request, None)
    except Unauthenticated:
        return SessionInfo(signed_in=False, sign_in=_ways(server), version=VERSION)
    return await _info(server, principal, session)


@router.post("/session", responses=responses(401, 403, 409, 422, 429))
async def sign_in(_: Anyone, request: Request, response: Response, body: SignInRequest) -> SessionInfo:
    """Sign in with an API key. The answer sets the cookie of a new session."""
    server: Server = request.app.state.server
    sessions = _sessions(server)
    signed_in = await sessions.sign_in(body.api_key, _client(request))
    await _begin(server, sessions, request, response, signed_in, "api_key")
    return await _info(server, signed_in.principal, signed_in)


@router.delete("/session", status_code=204, responses=responses(403))
async def sign_out(_: Anyone, request: Request, response: Response) -> None:
    """Sign out: the session ends everywhere. Without a session there is nothing to do."""
    server: Server = request.app.state.server
    url = server.api.public_url
    given = cookies.credential_of(request, url)
    if server.sessions is not None and given is not None:
        try:
            session = await server.sessions.check(given, None)
        except Unauthenticated:
            pass  # it has ended already
        else:
            await server.sessions.delete(session.id)
            await _record(server, session.principal, "session.delete", session.handle, {})
    cookies.clear_cookie(request, response, url, cookies.SESSION)


@router.get("/session/device", responses=responses(404, 503))
async def device_sign_in(_: Anyone, request: Request) -> DeviceSignIn:
    """How `perdure login` signs in through the identity provider (device flow, RFC 8628)."""
    found = await _oidc(request.app.state.server).device_client()
    return DeviceSignIn(
        issuer=found.issuer,
        client_id=found.client_id,
        scope=found.scope,
        audience=found.audience,
        device_authorization_endpoint=found.device_authorization_endpoint,
        token_endpoint=found.token_endpoint,
    )


class SignInRoute(GuardedRoute):
    """A browser comes here by a link or from the provider: refusals are pages."""

    takes_any_query = True  # providers add parameters of their own

    def refused(self, request: Request, error: PerdureError) -> Response:
        if error.http_status == 500:
            return super().refused(request, error)
        return render(
            "sign_in_failed.html",
            status_code=error.http_status,
            code=error.code,
            detail=str(error),
            has_provider=request.app.state.server.oidc is not None,
        )


signing_in = APIRouter(include_in_schema=False, route_class=SignInRoute)


@signing_in.get("/auth/oidc/start")
async def start_oidc(
    _: Anyone, request: Request, next: Annotated[str, Query(max_length=NEXT_CHARS_MAX)] = "/"
) -> Response:
    """Send the browser to the provider."""
    server: Server = request.app.state.server
    _sessions(server).check_client(_client(request))
    url, kept = await _oidc(server).begin(server.api.public_url + CALLBACK, next)
    answer = RedirectResponse(url, status_code=303)
    # Lax: the provider's page, which is another site, sends the browser back to us.
    cookies.set_cookie(request, answer, server.api.public_url, cookies.SIGN_IN, kept, age_s=FLOW_S, same_site="lax")
    return answer


@signing_in.get(CALLBACK)
async def finish_oidc(_: Anyone, request: Request) -> Response:
    """The browser comes back from the provider."""
    server: Server = request.app.state.server
    sessions, url, client = _sessions(server), server.api.public_url, _client(request)
    sessions.check_client(client)
    kept = cookies.read_cookie(request, url, cookies.SIGN_IN)
    try:
        found = await _oidc(server).finish(url + CALLBACK, kept, dict(request.query_params))
    except Unauthenticated as error:
        sessions.count_failure(client, error)
        raise
    signed_in = await sessions.sign_in_user(found.principal, found.name)
    answer = RedirectResponse(found.next, status_code=303)
    await _begin(server, sessions, request, answer, signed_in, "oidc")
    cookies.clear_cookie(request, answer, url, cookies.SIGN_IN)
    return answer


async def _begin(
    server: Server, sessions: WebSessions, request: Request, response: Response, signed_in: SignedIn, way: str
) -> None:
    """Give the browser its new session, and end the one that it had."""
    url = server.api.public_url
    before = cookies.read_cookie(request, url, cookies.SESSION)
    await sessions.delete(before)
    cookies.set_cookie(request, response, url, cookies.SESSION, signed_in.id, age_s=sessions.lifetime_s)
    await _record(server, signed_in.principal, "session.create", signed_in.handle, {"with": way})


async def _info(server: Server, principal: Principal, session: SignedIn | None) -> SessionInfo:
    if principal.namespace is not None:
        namespaces = [principal.namespace]
    else:
        namespaces = [n.name for n in await server.api.ports.reads.namespaces("", NAMESPACES_SHOWN_MAX)]
    return SessionInfo(
        signed_in=True,
        subject=principal.subject,
        name=session.name if session is not None else None,
        role=principal.role.value,
        permissions=sorted(p.value for p in principal.powers()),
        namespace=namespace_of(principal, None),
        namespaces=namespaces,
        csrf=session.csrf if session is not None else None,
        expires_at=views.moment(session.expires_us) if session is not None else None,
        sign_in=_ways(server),
        version=VERSION,
    )


def _ways(server: Server) -> SignInWays:
    return SignInWays(
        api_key=server.sessions is not None,
        oidc=server.oidc is not None,
        oidc_name=server.oidc.name if server.oidc is not None else None,
        dev=isinstance(server.auth, OpenAccess),
    )


def _sessions(server: Server) -> WebSessions:
    if server.sessions is None:
        raise Conflict("this server takes no keys: it is that of `perdure dev`, whose printed link signs a browser in")
    return server.sessions


def _oidc(server: Server) -> OidcSignIn:
    if server.oidc is None:
        raise NotFound(
            "this server knows no identity provider to sign in with (PERDURE_OIDC_CLIENT_ID): use an API key"
        )
    return server.oidc


def _client(request: Request) -> str:
    return client_of(request.client.host) if request.client else ""


async def _record(
    server: Server, principal: Principal, action: str, target: str, detail: dict[str, str | int | float | bool | None]
) -> None:
    ports = server.api.ports
    if not ports.is_audited:
        return
    ns = None
    if principal.namespace is not None:
        try:
            ns = await server.api.number_of(principal.namespace)
        except NotFound:  # a provider may name a namespace that is not there
            pass
    await ports.audit.record(principal, action, target, ns, detail or None)
