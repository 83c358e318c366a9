"""The cookies of a browser's session, and of a sign-in that it has begun.

Over https their names begin with `__Host-`, which no other host, no plain connection and no sibling of this host's domain can set in a browser.
"""

from __future__ import annotations

from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from perdure.server.auth.web_sessions import SessionCredential
from perdure.server.rest.browsers import SAFE_METHODS

SESSION: Final = "perdure_session"
SIGN_IN: Final = "perdure_sign_in"
HOST_PREFIX: Final = "__Host-"
CSRF_HEADER: Final = "perdure-csrf"


def credential_of(request: Request, public_url: str) -> SessionCredential | None:
    """The session that a request brings; None: it brings none."""
    ident = read_cookie(request, public_url, SESSION)
    if not ident:
        return None
    return SessionCredential(ident, request.headers.get(CSRF_HEADER), request.method not in SAFE_METHODS)


def read_cookie(request: Request, public_url: str, name: str) -> str:
    """Empty when there is none, or several: one of them was set by another host, and which one is not known."""
    wanted = _full_name(request, public_url, name)
    pairs = (pair.strip().partition("=") for pair in "; ".join(request.headers.getlist("cookie")).split(";"))
    found = {value for key, _, value in pairs if key == wanted}
    return found.pop() if len(found) == 1 else ""


def set_cookie(
    request: Request,
    response: Response,
    public_url: str,
    name: str,
    value: str,
    *,
    age_s: float,
    same_site: Literal["strict", "lax"] = "strict",
) -> None:
    response.set_cookie(
        _full_name(request, public_url, name),
        value,
        max_age=max(1, int(age_s)),
        path="/",
        secure=_is_https(request, public_url),
        httponly=True,
        samesite=same_site,
    )


def clear_cookie(request: Request, response: Response, public_url: str, name: str) -> None:
    response.delete_cookie(
        _full_name(request, public_url, name),
        path="/",
        secure=_is_https(request, public_url),
        httponly=True,
        samesite="strict",
    )


def _is_https(request: Request, public_url: str) -> bool:
    return public_url.startswith("https://") or request.url.scheme == "https"


def _full_name(request: Request, public_url: str, name: str) -> str:
    return f"{HOST_PREFIX}{name}" if _is_https(request, public_url) else name
