"""Authentication and authorisation of every request and every stream.

    headers --> credential --> principal --> rate --> permission --> Principal
                   | none,       | unknown,   | too     | not granted
                   | malformed   | expired,   | many    |
                   v             v revoked    v         v
               Unauthenticated  ...      RateLimited  Forbidden

Laws
 - Deny by default: a caller gets a principal or an error, and a permission that no table grants is refused.
 - A credential comes in the Authorization header as a bearer token, or from a browser in the cookie of its session (web_sessions.py), and
   nowhere else: addresses end up in logs.
 - Keys are looked up in the database each time, so that a revoked key ends everywhere with the commit that revoked it.
 - What is said of a key's state is said only to those who hold its secret.
 - Guessing is slow: a key id that gets wrong secrets is refused unseen for a while. A secret that was right a moment ago is
   let through to the check even then, so that knowing a key id is not enough to lock its owner out.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Final

from perdure.core.access import KeyCheck, Permission, Principal, Role
from perdure.core.api_keys import PREFIX, Presented, present
from perdure.core.errors import Forbidden, InvalidInput, RateLimited, Unauthenticated
from perdure.server.auth.addresses import is_loopback
from perdure.server.auth.ports import KeyStore
from perdure.server.auth.rates import BUCKETS_MAX, Buckets
from perdure.server.auth.tokens import Tokens

TOKEN_CHARS_MAX: Final = 8192
RATE_PER_S_DEFAULT: Final = 5_000.0
"""Requests a second of one principal whose key names no rate of its own."""
BURST_S: Final = 2.0
"""A burst is as much as this many seconds of a principal's rate."""
FAILURES_PER_S: Final = 0.2
FAILURES_BURST: Final = 10
"""Wrong secrets for one key id: so many at once, then one in five seconds."""
KEY_SUBJECT: Final = "key:"
NO_HASH: Final = bytes(32)

HOW: Final = "Send the header `Authorization: Bearer <key>` (PERDURE_API_KEY for the command line and workers)."


class SeveralCredentials(InvalidInput):
    """The request has more than one credential; send one `Authorization` header."""

    code = "several_credentials"
    http_status = 400


class Authenticator:
    def __init__(
        self,
        keys: KeyStore,
        tokens: Tokens | None = None,
        *,
        rate_per_s: float = RATE_PER_S_DEFAULT,
        buckets_max: int = BUCKETS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._rate_per_s = rate_per_s
        self._rates = Buckets(buckets_max, clock)
        self._failures = Buckets(buckets_max, clock)
        self._known: OrderedDict[str, bytes] = OrderedDict()
        """Hashes of secrets that were right the last time. They open nothing: see the last law."""
        self._known_max = buckets_max

    async def check(self, headers: Mapping[str, str], permission: Permission | None) -> Principal:
        """The principal of a request. Header names are lower-case. Permission None: any authenticated principal."""
        return self.grant(await self._identify(headers), permission)

    def grant(self, principal: Principal, permission: Permission | None) -> Principal:
        """The principal, if its rate and its role allow a request that needs this permission."""
        self.admit(principal)
        if permission is not None and not principal.may(permission):
            raise Forbidden(f"{principal.subject} ({principal.role.value}) has no permission {permission.value!r}")
        return principal

    async def check_metadata(
        self, metadata: Iterable[tuple[str, str | bytes]], permission: Permission | None
    ) -> Principal:
        """The same for the metadata of a gRPC call."""
        given = [v for k, v in metadata if k.lower() == "authorization" and isinstance(v, str)]
        if len(given) > 1:
            raise Unauthenticated("there is more than one credential: send one authorization entry")
        return await self.check({"authorization": given[0]} if given else {}, permission)

    async def recheck(self, principal: Principal) -> bool:
        """Whether an earlier credential is still valid for the same principal; streams check this every few seconds."""
        ident = principal.subject.removeprefix(KEY_SUBJECT)
        if ident == principal.subject:
            return self._tokens is not None and self._tokens.holds(principal)
        found = await self._keys.find(ident)
        return found is not None and not found.expired and not found.revoked and found.principal == principal

    async def _identify(self, headers: Mapping[str, str]) -> Principal:
        token = bearer(headers)
        if token is None:
            raise Unauthenticated(f"this server requires credentials. {HOW}")
        if token.startswith(PREFIX):
            return (await self.by_key(token)).principal
        if self._tokens is None:
            raise Unauthenticated(f"this is not an API key. {HOW}")
        return await self._tokens.verify(token)

    async def by_key(self, token: str) -> KeyCheck:
        """The live key that a text is. Raises Unauthenticated, or RateLimited after too many wrong secrets."""
        presented = present(token)
        if presented is None:
            raise Unauthenticated("this is not a whole API key: it looks like pd_<12 characters>_<43 characters>")
        if not self._is_known(presented):
            wait = self._failures.wait_s(presented.id, FAILURES_PER_S, FAILURES_BURST)
            if wait:
                raise RateLimited(f"too many wrong secrets for key {presented.id}: wait {wait:.0f} s", wait)
        found = await self._keys.find(presented.id)
        right = compare_digest(found.hash if found is not None else NO_HASH, presented.hash)
        if found is None or not right:
            self._failures.take(presented.id, FAILURES_PER_S, FAILURES_BURST)
            raise Unauthenticated("there is no such API key: it was mistyped, or belongs to another server")
        self._remember(presented)
        return await self._live(presented.id, found)

    async def by_key_id(self, ident: str) -> KeyCheck:
        """The live key of a session. Its secret was checked when the session began."""
        found = await self._keys.find(ident)
        if found is None:
            raise Unauthenticated(f"there is no API key {ident} any more: sign in with another one")
        return await self._live(ident, found)

    async def _live(self, ident: str, found: KeyCheck) -> KeyCheck:
        if found.revoked:
            raise Unauthenticated(f"API key {ident} was revoked: ask for a new one")
        if found.expired:
            raise Unauthenticated(f"API key {ident} has expired: ask for a new one")
        if found.use_is_stale:
            await self._keys.touch(ident)
        return found

    def _is_known(self, presented: Presented) -> bool:
        return compare_digest(self._known.get(presented.id, NO_HASH), presented.hash)

    def _remember(self, presented: Presented) -> None:
        self._known[presented.id] = presented.hash
        self._known.move_to_end(presented.id)
        if len(self._known) > self._known_max:
            self._known.popitem(last=False)

    def admit(self, principal: Principal) -> None:
        """Count a request; RateLimited when there are too many."""
        rate = principal.rate_per_s or self._rate_per_s
        wait = self._rates.take(principal.subject, rate, max(1.0, rate * BURST_S))
        if wait:
            raise RateLimited(
                f"{principal.subject} has used up its {rate:g} requests a second: wait {wait:.3f} s", wait
            )


class OpenAccess(Authenticator):
    """For development: every local request is an administrator's, and remote requests are refused."""

    def __init__(self, host: str, token: str = "") -> None:
        """`token`: what `perdure dev` asks for in place of a key, as a bearer token or in the cookie that its link sets."""
        if not is_loopback(host):
            raise InvalidInput(
                f"access without a key is for this machine alone, and {host!r} is an address that others can reach. "
                "Bind to 127.0.0.1, or create a key with `perdure api-key create` and run `perdure server`."
            )
        super().__init__(_NoKeys())
        self._token = token.encode()

    async def _identify(self, headers: Mapping[str, str]) -> Principal:
        if not self._token or any(compare_digest(self._token, given.encode()) for given in _dev_tokens(headers)):
            return DEVELOPER
        raise Unauthenticated(
            "this is the server of `perdure dev`, and the request has not its token. In a browser, open the link that `perdure dev` printed. "
            "A program sends `Authorization: Bearer` and the content of .perdure/dev-token; commands on this machine find it by themselves."
        )

    def admit(self, principal: Principal) -> None:
        """Local requests are not rate limited."""

    async def recheck(self, principal: Principal) -> bool:
        return principal == DEVELOPER


DEVELOPER: Final = Principal(subject="dev", role=Role.ADMIN)


DEV_COOKIE: Final = "perdure_dev_"
"""Begins the name of the cookie that holds the token of `perdure dev`; its port follows."""


def _dev_tokens(headers: Mapping[str, str]) -> list[str]:
    cookies: SimpleCookie = SimpleCookie()
    with contextlib.suppress(CookieError):
        cookies.load(headers.get("cookie", ""))
    found = [morsel.value for name, morsel in cookies.items() if name.startswith(DEV_COOKIE)]
    token = bearer(headers) if "authorization" in headers else None
    return [*found, *([token] if token is not None else [])]


class _NoKeys:
    async def find(self, ident: str) -> None:
        return None

    async def touch(self, ident: str) -> None: ...


def bearer(headers: Mapping[str, str]) -> str | None:
    """The bearer token, or None where there is no Authorization header. Another scheme is refused, not ignored."""
    value = headers.get("authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token or len(token) > TOKEN_CHARS_MAX or not _is_token(token):
        raise Unauthenticated(
            f"the Authorization header holds no bearer token of at most {TOKEN_CHARS_MAX} characters. {HOW}"
        )
    return token


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text and "," not in text
