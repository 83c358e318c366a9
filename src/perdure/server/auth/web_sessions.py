"""Sessions of browsers: a credential in a cookie, in place of one in a header.

    sign-in --new id--> cookie perdure_session (HttpOnly, SameSite=Strict)
    request --id------> row by the id's hash --> key or user --> Principal --> rate, permission

Laws
 - Every sign-in draws a new id; an id that a browser brings along is never adopted.
 - A session of an API key has no rights of its own: the key is looked up at each request, and its end is the end of the session.
 - A session ends when it expires, when it is not used for a while, and when its owner signs out; by the clock of the database.
 - A browser sends cookies for pages of other sites as well: a request that changes something needs the CSRF token, which only our pages can read.
 - Guessing is slow: an address with wrong sign-ins is refused for a while, beside the limit on each key id.
"""

from __future__ import annotations

import logging
import secrets
from hmac import compare_digest
from typing import Final

import msgspec

from perdure.core.access import Permission, Principal
from perdure.core.errors import Forbidden, RateLimited, Unauthenticated
from perdure.core.limits import WEB_SESSION_IDLE_S, WEB_SESSION_S
from perdure.core.web_sessions import ID_BYTES, NewWebSession, WebSession, csrf_of, handle_of, hash_of, is_id
from perdure.server.auth.authenticator import KEY_SUBJECT, Authenticator
from perdure.server.auth.ports import WebSessionStore
from perdure.server.auth.rates import Buckets

log = logging.getLogger("perdure.auth")

TOUCH_S: Final = 60.0
"""A session's use is written down at most once in so many seconds."""
FAILURES_PER_S: Final = 0.5
FAILURES_BURST: Final = 20
"""Refused sign-ins of one address: so many at once, then one in two seconds."""
NAME_CHARS_SHOWN: Final = 200


class CsrfFailed(Forbidden):
    """The request is signed in by a cookie and has not the session's `Perdure-Csrf` header; `GET /api/v1/session` says what to send."""

    code = "csrf_failed"


class SessionCredential(msgspec.Struct, frozen=True):
    """What a request of a browser brings."""

    id: str
    csrf: str | None
    """Of its header."""
    changes: bool
    """Whether its method may change something."""


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """A session that holds, and its principal."""

    id: str
    principal: Principal
    name: str
    expires_us: int

    @property
    def csrf(self) -> str:
        return csrf_of(self.id)

    @property
    def handle(self) -> str:
        return handle_of(self.id)


class WebSessions:
    def __init__(
        self,
        store: WebSessionStore,
        auth: Authenticator,
        *,
        lifetime_s: float = WEB_SESSION_S,
        idle_s: float = WEB_SESSION_IDLE_S,
    ) -> None:
        self._store, self._auth = store, auth
        self._lifetime_s, self._idle_s = lifetime_s, idle_s
        # An idle time below some minutes would end sessions that are in use.
        self._touch_s = min(TOUCH_S, idle_s / 4)
        self._failures = Buckets()

    @property
    def lifetime_s(self) -> float:
        return self._lifetime_s

    async def sign_in(self, api_key: str, client: str) -> SignedIn:
        """A new session of the holder of a key. `client`: where the request comes from."""
        self.check_client(client)
        try:
            found = await self._auth.by_key(api_key)
        except Unauthenticated as error:
            self.count_failure(client, error)
            raise
        principal = self._auth.grant(found.principal, None)
        key_id = principal.subject.removeprefix(KEY_SUBJECT)
        return await self._create(principal, found.name, key_id=key_id)

    async def sign_in_user(self, principal: Principal, name: str) -> SignedIn:
        """A new session of a user whom an identity provider vouches for."""
        return await self._create(self._auth.grant(principal, None), name, key_id=None)

    def check_client(self, client: str) -> None:
        wait = self._failures.wait_s(client, FAILURES_PER_S, FAILURES_BURST)
        if wait:
            raise RateLimited(f"too many sign-ins from this address were refused: wait {wait:.0f} s", wait)

    def count_failure(self, client: str, error: Exception) -> None:
        log.warning("a sign-in from %s was refused: %s", client, error)
        self._failures.take(client, FAILURES_PER_S, FAILURES_BURST)

    async def check(self, given: SessionCredential, permission: Permission | None) -> SignedIn:
        """The session of a request. Raises Unauthenticated, CsrfFailed, RateLimited or Forbidden."""
        found = await self.find(given.id)
        if found is None:
            raise Unauthenticated("this session has ended: sign in again")
        if given.changes and not compare_digest((given.csrf or "").encode(), found.csrf.encode()):
            raise CsrfFailed(
                "this request comes with a session's cookie and would change something, so it needs the header `Perdure-Csrf`: "
                "send the `csrf` that GET /api/v1/session answers, or an API key in `Authorization`"
            )
        self._auth.grant(found.principal, permission)
        return found

    async def find(self, ident: str) -> SignedIn | None:
        """None: there is no such session any more. Raises Unauthenticated when its key was revoked or has expired."""
        if not is_id(ident):
            return None
        row = await self._store.find(hash_of(ident), self._idle_s, self._touch_s)
        if row is None or row.has_ended:
            return None
        principal = await self._principal(row)
        if row.use_is_stale:
            await self._store.touch(hash_of(ident), self._touch_s)
        return SignedIn(id=ident, principal=principal, name=row.name, expires_us=row.expires_us)

    async def holds(self, ident: str, principal: Principal) -> bool:
        """Whether a session is still that of the principal. A stream asks this; it is no use of the session."""
        row = await self._store.find(hash_of(ident), self._idle_s, self._touch_s)
        if row is None or row.has_ended:
            return False
        if row.key_id is not None:
            return await self._auth.recheck(principal)
        return await self._principal(row) == principal

    async def delete(self, ident: str) -> None:
        if is_id(ident):
            await self._store.delete(hash_of(ident))

    async def _create(self, principal: Principal, name: str, *, key_id: str | None) -> SignedIn:
        ident = secrets.token_urlsafe(ID_BYTES)
        shown = "".join(c for c in name if c.isprintable())[:NAME_CHARS_SHOWN]
        new = NewWebSession(
            hash=hash_of(ident),
            subject=principal.subject,
            name=shown,
            key_id=key_id,
            role=principal.role if key_id is None else None,
            namespace=principal.namespace if key_id is None else None,
            lifetime_s=self._lifetime_s,
        )
        expires_us = await self._store.create(new)
        return SignedIn(id=ident, principal=principal, name=shown, expires_us=expires_us)

    async def _principal(self, row: WebSession) -> Principal:
        if row.key_id is not None:
            return (await self._auth.by_key_id(row.key_id)).principal
        assert row.role is not None, "a session has a key or rights of its own"
        return Principal(
            subject=row.subject, role=row.role, namespace=row.namespace, expires_s=row.expires_us / 1_000_000
        )
