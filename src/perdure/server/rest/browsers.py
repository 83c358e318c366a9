"""Protection against requests that other sites make a browser send: DNS rebinding and cross-site requests.

A browser sends requests for any page that it shows, with the addresses that only its machine can reach and with our cookies. Two ways in are closed here,
for every request, before a credential is looked at:

1. DNS rebinding: a page's own host name is made to resolve to this server. The name is in `Host`, so only known names are answered. An IP address is
   answered as well: a page that names one is of another origin, which the second check finds.
2. Cross-site requests: a form or script of another origin sends a request that changes something. Browsers say so in `Sec-Fetch-Site` and `Origin`, which
   pages cannot forge. Programs other than browsers send neither and pass.

`perdure dev` asks for no key. Its token is in the link that it prints; a browser that follows the link gets the token as a cookie.
"""

from __future__ import annotations

from collections.abc import Iterable
from hmac import compare_digest
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.core.errors import Forbidden, PerdureError
from perdure.server.auth.authenticator import DEV_COOKIE
from perdure.server.rest.problems import problem_of

SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
PROBES: Final = ("/livez", "/readyz")
"""Load balancers may use any host name; these paths expose and change nothing."""
ANY_HOST: Final = "*"
LOCAL_NAMES: Final = ("localhost",)
TOKEN_PARAMETER: Final = "token"
COOKIE_S: Final = 30 * 86_400


class UnknownHost(PerdureError):
    """The server does not answer for the host that the request names; see `PERDURE_ALLOWED_HOSTS`."""

    code = "unknown_host"
    http_status = 421


class CrossSite(Forbidden):
    """A browser sent the request for a page of another site; only this server's own pages may change something."""

    code = "cross_site"


class BrowserGuard:
    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] = (), public_url: str = "", dev_token: str = "") -> None:
        self.app = app
        public = urlsplit(public_url)
        self._hosts = {host.lower() for host in (*hosts, *LOCAL_NAMES, public.hostname or "") if host}
        self._public_place = public.netloc.lower()
        self._dev_token = dev_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        answer: Response | None
        try:
            answer = self._answer(request)
        except PerdureError as error:
            answer = problem_of(request, error)
        await (answer or self.app)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        if request.url.path not in PROBES:
            self._check_host(request)
        if request.method not in SAFE_METHODS:
            self._check_site(request)
        return self._signed_in(request) if self._dev_token and request.method == "GET" else None

    def _check_host(self, request: Request) -> None:
        given = request.headers.getlist("host")
        host = host_of(given[0]) if len(given) == 1 else ""
        if not host or not (host in self._hosts or ANY_HOST in self._hosts or _is_address(host)):
            raise UnknownHost(
                f"this server does not answer for the host {host[:100]!r}. If that is a name of it, say so when it starts: "
                f"PERDURE_ALLOWED_HOSTS={host[:100] or 'NAME'}, or PERDURE_PUBLIC_URL."
            )

    def _check_site(self, request: Request) -> None:
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
        # The scheme is left out: behind a proxy that ends TLS it is another one than the page's.
        own = {self._public_place, request.headers.get("host", "").lower()}
        is_foreign = origin is not None and origin.lower().partition("://")[2] not in own
        if origin == "null" and site is not None:
            is_foreign = (
                False  # a form of a page that sends no referrer; the browser says where it stands in the other header
            )
        if is_foreign or site not in (None, "same-origin", "none"):
            raise CrossSite(
                f"a browser sent this request for a page of another site ({(origin or site or '')[:200]}): refused. "
                "Use this server's own pages, or send it from a program that is no browser."
            )

    def _signed_in(self, request: Request) -> Response | None:
        """Set the cookie for the browser that follows the printed link, and redirect to the address without the token."""
        parameters = parse_qsl(request.url.query, keep_blank_values=True)
        given = [value for name, value in parameters if name == TOKEN_PARAMETER]
        if not given or request.url.path.startswith("/api/"):
            return None
        rest = urlencode([(name, value) for name, value in parameters if name != TOKEN_PARAMETER])
        path = "/" + request.url.path.lstrip("/")  # "//host/" would lead to another one
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        if len(given) == 1 and compare_digest(given[0].encode(), self._dev_token.encode()):
            # Cookies know no ports: two `perdure dev` of one machine would take each other's.
            port = (request.scope.get("server") or ("", 0))[1]
            answer.set_cookie(
                f"{DEV_COOKIE}{port}", self._dev_token, httponly=True, samesite="strict", max_age=COOKIE_S
            )
        return answer


def host_of(header: str) -> str:
    """The host of a Host header, lower-case, without port and brackets; empty when it is not one."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return ""
    if parts.path or parts.query or parts.fragment or "@" in header:
        return ""
    return (parts.hostname or "").rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
