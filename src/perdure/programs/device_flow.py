"""Signing in at an identity provider from a terminal: the device flow (RFC 8628), and new tokens for a refresh token (RFC 6749, 6).

The terminal shows an address and a code; the person opens the address in any browser, on any machine, and signs in there. Meanwhile the
terminal asks the provider every few seconds whether that has happened.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from perdure.core.errors import Unauthenticated, Unavailable
from perdure.programs.credentials import Credential
from perdure.programs.http_client import CONNECT_S, tls_context
from perdure.programs.http_session import LOOPBACK, HttpSession, TransportError

ANSWER_S: Final = 15.0
LOGIN_S_MAX: Final = 900.0
"""How long `perdure login` waits, though a provider may give its codes more time."""
INTERVAL_S: Final = 5.0
"""Between two questions, where the provider says nothing else."""
INTERVAL_S_MIN: Final = 0.5
SLOW_DOWN_S: Final = 5.0
"""What a provider that is asked too often adds to the interval."""
GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"


class DeviceCode(NamedTuple):
    """What a person types or opens, and what the terminal asks with."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: float
    interval: float


def begin(client: Mapping[str, str]) -> DeviceCode:
    """`client`: what GET /session/device of the server answers."""
    for endpoint in ("device_authorization_endpoint", "token_endpoint"):
        _check_url(client[endpoint])
    asked = {"client_id": client["client_id"], "scope": client["scope"], "audience": client["audience"]}
    status, said = _post(client["device_authorization_endpoint"], asked)
    try:
        if status != 200:
            raise Unauthenticated(f"the identity provider began no sign-in: {_error(said, status)}")
        uri = str(said["verification_uri"])
        return DeviceCode(
            device_code=str(said["device_code"]),
            user_code=_shown(said["user_code"]),
            verification_uri=_shown(uri),
            verification_uri_complete=_shown(said.get("verification_uri_complete") or uri),
            expires_in=min(float(said["expires_in"]), LOGIN_S_MAX),
            interval=max(float(said.get("interval", INTERVAL_S)), INTERVAL_S_MIN),
        )
    except (KeyError, TypeError, ValueError):
        raise Unavailable("the identity provider's answer is not that of the device flow (RFC 8628)") from None


def wait(
    client: Mapping[str, str],
    code: DeviceCode,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The provider's tokens, once the person has signed in. Raises Unauthenticated when they do not, or not in time."""
    deadline, interval = clock() + code.expires_in, code.interval
    given = {"grant_type": GRANT, "device_code": code.device_code, "client_id": client["client_id"]}
    while clock() + interval < deadline:
        sleep(interval)
        try:
            status, said = _post(client["token_endpoint"], given)
        except Unavailable:
            interval *= 2  # as the standard asks of a client whose question got lost
            continue
        if status == 200:
            return said
        match said.get("error"):
            case "authorization_pending":
                pass
            case "slow_down":
                interval += SLOW_DOWN_S
            case "access_denied":
                raise Unauthenticated("the sign-in was denied in the browser")
            case "expired_token":
                break
            case _:
                raise Unauthenticated(f"the identity provider did not sign you in: {_error(said, status)}")
    raise Unauthenticated("the code has expired before anyone signed in with it: run `perdure login` again")


def credentials_of(client: Mapping[str, str], said: Mapping[str, Any]) -> list[Credential]:
    """What a server might accept of the provider's tokens: the access token, which is meant for it, then the ID token."""
    out: list[Credential] = []
    for uses in ("access_token", "id_token"):
        token = said.get(uses)
        if isinstance(token, str) and token:
            out.append(
                Credential(
                    secret=token,
                    expires_s=_expiry(token, said),
                    refresh_token=str(said.get("refresh_token") or ""),
                    token_endpoint=client["token_endpoint"],
                    client_id=client["client_id"],
                    uses=uses,
                )
            )
    return out


def renew(url: str, old: Credential) -> Credential:
    """Raises Unauthenticated when the person has to sign in again."""
    again = f"your sign-in to {url} has ended: run `perdure login --url {url}`"
    if not old.refresh_token:
        raise Unauthenticated(again)
    given = {"grant_type": "refresh_token", "refresh_token": old.refresh_token, "client_id": old.client_id}
    status, said = _post(old.token_endpoint, given)
    client = {"token_endpoint": old.token_endpoint, "client_id": old.client_id}
    found = [one for one in credentials_of(client, said) if one.uses == old.uses] if status == 200 else []
    if not found:
        raise Unauthenticated(f"{again} ({_error(said, status)})")
    # A provider that sends no new refresh token lets the old one go on.
    return found[0]._replace(refresh_token=found[0].refresh_token or old.refresh_token)


def _check_url(url: str) -> None:
    if not url.startswith("https://") and urlsplit(url).hostname not in LOOPBACK:
        raise Unavailable(f"the identity provider's address {_shown(url)} is not https: nothing is sent to it")


def _post(url: str, given: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    _check_url(url)
    try:
        session = HttpSession(
            url,
            {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"},
            connect_s=CONNECT_S,
            answer_s=ANSWER_S,
            context=tls_context(os.environ) if url.startswith("https://") else None,
        )
        try:
            answer = session.request("POST", "", params=[], content=urlencode(given).encode(), headers=None)
        finally:
            session.close()
        said = answer.json()
    except (TransportError, ValueError) as error:
        raise Unavailable(f"the identity provider at {_shown(url)} cannot be asked: {error}") from None
    return answer.status_code, said if isinstance(said, dict) else {}


def _expiry(token: str, said: Mapping[str, Any]) -> float:
    """By the token itself, where it can be read; the server checks it anyway."""
    try:
        body = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        pass
    try:
        return time.time() + float(said["expires_in"])
    except (KeyError, TypeError, ValueError):
        return 0.0


def _error(said: Mapping[str, Any], status: int) -> str:
    words = [_shown(said[name]) for name in ("error", "error_description") if said.get(name)]
    return ": ".join(words) or f"status {status}"


def _shown(value: object) -> str:
    """Words of another server, fit for a terminal."""
    return "".join(c for c in str(value) if c.isprintable())[:500]
