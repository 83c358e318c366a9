"""Authentication and form of requests. Every route passes here before anything of the request is used.

Laws:

1. A route names the act that it is the door of, which says the permission; or, where it is none, what it needs. A route that names neither
   cannot be built.
2. Order: credential, namespace, size and form of the body, then the route. The body of an unauthenticated request is not read.
3. A query parameter that the route does not declare is refused, with the nearest one that it does.
4. No NUL and no lone surrogate gets past: PostgreSQL and UTF-8 have no place for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from fastapi import Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from perdure.core.access import Permission, Principal, namespace_of
from perdure.core.api.act import Act
from perdure.core.api.texts import check_text
from perdure.core.approvals import Via
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.suggestions import did_you_mean
from perdure.engine.api.api import Caller, NamespaceApi
from perdure.server.auth.authenticator import SeveralCredentials
from perdure.server.auth.web_sessions import SignedIn
from perdure.server.context import Server
from perdure.server.rest.problems import BodyTooLarge, UnsupportedMediaType, internal, problem_of
from perdure.server.rest.session_cookies import credential_of

BODY_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one request's body."""
JSON_DEPTH_MAX: Final = 64
"""Arrays and objects inside one another in a request."""
QUERY_CHARS_MAX: Final = 8_192
"""Characters of a request's query."""
_INFINITE: Final = (float("inf"), float("-inf"))
NAMESPACE_HEADER: Final = "perdure-namespace"
CLI_AGENT: Final = "perdure-cli"
"""Begins the user agent of the command line."""

Q = TypeVar("Q")
R = TypeVar("R")


PUBLIC: Final[Literal["public"]] = "public"
"""No credential is asked for."""
Need = Permission | Literal["public"] | None
"""What a route needs: a permission, nothing but a valid credential (None), or no credential at all."""


@dataclass(frozen=True, slots=True)
class RestCaller:
    """An authenticated request, and the API of the namespace it works in."""

    api: NamespaceApi
    server: Server
    session: SignedIn | None = None
    """The browser's session; None for a credential in a header."""

    async def recheck(self) -> bool:
        """Whether the credential is still valid."""
        principal = self.api.caller.principal
        if self.session is not None and self.server.sessions is not None:
            return await self.server.sessions.holds(self.session.id, principal)
        return await self.server.auth.recheck(principal)

    async def call(self, act: Act[Q, R], request: Q) -> R:
        return await self.api.call(act, request)

    @property
    def now_us(self) -> int:
        return self.server.engine.clock.now_us()


class Allow:
    """A dependency that names what its route needs and hands it the caller."""

    def __init__(self, need: Need, act: Act[Any, Any] | None = None) -> None:
        self.need: Need = need
        self.act = act

    async def __call__(self, request: Request) -> RestCaller | None:
        return getattr(request.state, "caller", None)


def asks(act: Act[Any, Any]) -> Any:
    """The dependency of a route that is the REST door of an act."""
    return Depends(Allow(act.permission, act))


Reader = Annotated[RestCaller, Depends(Allow(Permission.READ))]
"""For routes that are no act: streams and pages."""
Anyone = Annotated[None, Depends(Allow(PUBLIC))]


def allow_of(dependant: Dependant) -> Allow:
    found = [d.call for d in dependant.dependencies if isinstance(d.call, Allow)]
    assert len(found) == 1, (
        f"{dependant.path}: a route names exactly one act or permission, this one names {len(found)}"
    )
    return found[0]


async def admit(server: Server, request: Request, need: Need) -> RestCaller | None:
    if need == PUBLIC:
        return None
    principal, session = await identify(server, request, need if isinstance(need, Permission) else None)
    namespace = namespace_of(principal, request.headers.get(NAMESPACE_HEADER))
    via: Via = "cli" if request.headers.get("user-agent", "").startswith(CLI_AGENT) else "rest"
    return RestCaller(await server.api.of(Caller(principal, namespace, via)), server, session)


async def identify(
    server: Server, request: Request, permission: Permission | None
) -> tuple[Principal, SignedIn | None]:
    """The principal of a request, and its session where the cookie is its credential. A header comes before a cookie."""
    if len(request.headers.getlist("authorization")) > 1:
        raise SeveralCredentials("there is more than one Authorization header: send exactly one")
    if server.sessions is not None and "authorization" not in request.headers:
        given = credential_of(request, server.api.public_url)
        if given is not None:
            session = await server.sessions.check(given, permission)
            return session.principal, session
    headers = {name.lower(): value for name, value in request.headers.items()}
    return await server.auth.check(headers, permission), None


class GuardedRoute(APIRoute):
    """A route behind the guard."""

    body_bytes_max: ClassVar[int] = BODY_BYTES_MAX
    takes_any_query: ClassVar[bool] = False
    """Whether parameters that the route does not declare are ignored instead of refused."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner, need = super().get_route_handler(), allow_of(self.dependant).need
        known = None if self.takes_any_query else query_names(self.dependant)

        async def guarded(request: Request) -> Response:
            try:
                request.state.caller = await admit(request.app.state.server, request, need)
                check_address(request, known)
                await check_body(request, self.parse, self.body_bytes_max)
                return await inner(request)
            except (HTTPException, RequestValidationError):
                raise
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.REQUEST_TIMEOUT)  # for uvicorn alone: the client has gone
            except PerdureError as error:
                return self.refused(request, error)
            except Exception as error:
                return internal(request, error)

        return guarded

    def parse(self, request: Request, body: bytes) -> Any:
        """What a body says: JSON, unless a route of its own kind knows more."""
        if not is_json(request.headers.get("content-type", "")):
            raise UnsupportedMediaType(
                "the body is not declared as JSON: send the header `Content-Type: application/json`"
            )
        return parse_json(body)

    def refused(self, request: Request, error: PerdureError) -> Response:
        return problem_of(request, error)


def query_names(dependant: Dependant) -> frozenset[str]:
    """The query parameters that a route and its dependencies declare."""
    own = {field.alias for field in dependant.query_params}
    return frozenset(own.union(*(query_names(d) for d in dependant.dependencies)))


def check_address(request: Request, known: frozenset[str] | None) -> None:
    """`known`: the query parameters that the route declares; None where others are ignored."""
    if len(request.url.query) > QUERY_CHARS_MAX:
        raise InvalidInput(f"the query has over QUERY_CHARS_MAX={QUERY_CHARS_MAX} characters")
    for text in request.path_params.values():
        check_text(str(text))
    for name, value in request.query_params.multi_items():
        check_text(name)
        check_text(value)
        if known is not None and name not in known:
            raise InvalidInput(_unknown_parameter(name, known))


def _unknown_parameter(name: str, known: frozenset[str]) -> str:
    """A misspelled filter that is ignored answers with what was not asked for."""
    shown = f"{name[:NAME_CHARS_MAX]!r} is no query parameter of this route"
    if not known:
        return f"{shown}: it takes none"
    hint = did_you_mean(name, sorted(known))
    return f"{shown}{f'; {hint}' if hint else '.'} It takes {', '.join(sorted(known))}"


async def check_body(request: Request, parse: Callable[[Request, bytes], Any], bytes_max: int = BODY_BYTES_MAX) -> None:
    """Read the body, bounded. What it says, once it is fit to be read, is left in `request.state.value`; None for no body at all."""
    request.state.value = None
    if request.method in ("GET", "HEAD"):
        return
    body = await _bounded(request, bytes_max)
    request._body = body  # what Starlette keeps once it has read a body; it will not read it again
    if body:
        request.state.value = parse(request, body)


async def _bounded(request: Request, bytes_max: int) -> bytes:
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > bytes_max:
        raise _too_large(bytes_max)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise _too_large(bytes_max)
        parts.append(part)
    return b"".join(parts)


def _too_large(bytes_max: int) -> BodyTooLarge:
    name = "BODY_BYTES_MAX" if bytes_max == BODY_BYTES_MAX else "WEBHOOK_BODY_BYTES_MAX"
    return BodyTooLarge(
        f"the body of this request is over {name}={bytes_max} bytes; store large data elsewhere and pass a reference"
    )


def is_json(content_type: str) -> bool:
    """A page of another site cannot send this type unasked: a browser would ask the server first."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))


def parse_json(body: bytes) -> Any:
    """JSON as the standard has it: UTF-8, no NaN, no depth that would exhaust a stack, no text that cannot be stored."""
    try:
        value = json.loads(body, parse_constant=_refuse)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    check_value(value)
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _too_deep() -> InvalidInput:
    return InvalidInput(f"the body nests deeper than JSON_DEPTH_MAX={JSON_DEPTH_MAX}")


def check_value(value: Any) -> None:
    """Every part of a JSON value, without recursion."""
    left = [(value, 0)]
    while left:
        one, depth = left.pop()
        if isinstance(one, str):
            check_text(one)
        elif isinstance(one, float):
            if one in _INFINITE:
                raise InvalidInput("a number of this request is too large for a double")
        elif isinstance(one, (dict, list)):
            if depth == JSON_DEPTH_MAX:
                raise _too_deep()
            if isinstance(one, dict):
                for name in one:
                    check_text(name)
            left += [(part, depth + 1) for part in (one.values() if isinstance(one, dict) else one)]
