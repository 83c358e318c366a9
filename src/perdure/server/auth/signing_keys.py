"""The provider's public keys, by their id (`kid`).

Laws
 - They are fetched when they are first needed, when a token names an id that is not among them (at most once per
   JWKS_REFETCH_S, so that made-up ids cannot make us hammer the provider), and when they are older than JWKS_AGE_S.
 - A fetched set replaces the one before: a key that the provider took away is gone here too.
 - While the provider is unavailable the last key set is used for JWKS_STALE_S; after that every token is refused.
 - Answers have a time and a size limit and are not followed elsewhere. Symmetric and short keys, and those of other algorithms, are left out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

from perdure.core.errors import Unavailable
from perdure.server.auth.discovery import discover, fetch
from perdure.server.auth.oidc import OidcSettings

log = logging.getLogger("perdure.auth")

PublicKey = RSAKey | ECKey | OKPKey

JWKS_S_MAX: Final = 5.0
JWKS_KEYS_MAX: Final = 100
JWKS_REFETCH_S: Final = 30.0
JWKS_AGE_S: Final = 300.0
JWKS_STALE_S: Final = 3600.0
RSA_BITS_MIN: Final = 2048


class SigningKeys:
    def __init__(
        self,
        settings: OidcSettings,
        *,
        refetch_s: float = JWKS_REFETCH_S,
        age_s: float = JWKS_AGE_S,
        stale_s: float = JWKS_STALE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._refetch_s, self._age_s, self._stale_s = refetch_s, age_s, stale_s
        self._clock = clock
        self._keys: Mapping[str, PublicKey] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._lock = asyncio.Lock()
        self.fetches = 0
        """Requests to the provider so far."""

    async def key(self, kid: str) -> PublicKey | None:
        """None: the provider has no such key. Raises Unavailable when the provider cannot be reached."""
        await self._refresh_for(kid)
        return self._keys.get(kid)

    async def only_key(self) -> PublicKey | None:
        """The key of a provider that has one alone, and need not name it in its tokens."""
        await self._refresh_for(next(iter(self._keys), ""))
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    async def _refresh_for(self, kid: str) -> None:
        if self._due(kid):
            async with self._lock:
                if self._due(kid):  # another request may have refreshed it while this one waited for the lock
                    await self._refresh()
        age = self._age()
        if age is None or age > self._stale_s:
            raise Unavailable(
                "tokens cannot be checked: the identity provider's signing keys are out of reach. Try again later; "
                "API keys are not affected."
            )

    def _age(self) -> float | None:
        return None if self._fetched_at is None else self._clock() - self._fetched_at

    def _due(self, kid: str) -> bool:
        if self._tried_at is not None and self._clock() - self._tried_at < self._refetch_s:
            return False
        age = self._age()
        return age is None or age >= self._age_s or kid not in self._keys

    async def _refresh(self) -> None:
        self._tried_at = self._clock()
        self.fetches += 1
        try:
            async with asyncio.timeout(JWKS_S_MAX), httpx2.AsyncClient(timeout=JWKS_S_MAX) as client:
                self._keys = read_keys(await fetch(client, await self._url(client)))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, TimeoutError, ValueError, RecursionError) as e:
            log.warning("signing keys of %s were not fetched: %s", self._settings.issuer, str(e) or type(e).__name__)
            return
        self._fetched_at = self._clock()

    async def _url(self, client: httpx2.AsyncClient) -> str:
        if self._settings.jwks_url is not None:
            return self._settings.jwks_url
        return (await discover(client, self._settings.issuer)).jwks_uri


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def read_keys(body: bytes) -> dict[str, PublicKey]:
    """The usable keys of a set. One that cannot be read does not spoil the others."""
    found: dict[str, PublicKey] = {}
    for entry in msgspec.json.decode(body, type=_KeySet).keys[:JWKS_KEYS_MAX]:
        kid = entry.get("kid")
        key = _usable(entry)
        if isinstance(kid, str) and kid and key is not None:
            found[kid] = key
    return found


def _usable(entry: dict[str, Any]) -> PublicKey | None:
    kty, modulus = entry.get("kty"), entry.get("n")
    if entry.get("use", "sig") != "sig" or kty not in ("RSA", "EC", "OKP"):
        return None
    if kty == "RSA" and not (isinstance(modulus, str) and len(modulus) * 6 >= RSA_BITS_MIN):
        return None
    try:
        key = import_key(entry)
    except (JoseError, ValueError, TypeError, KeyError) as e:
        log.debug("a signing key was left out: %s", e)
        return None
    match key:
        case RSAKey():
            return key
        case ECKey():
            return key if key.curve_name == "P-256" else None
        case OKPKey():
            return key if key.curve_name == "Ed25519" else None
        case _:
            return None
