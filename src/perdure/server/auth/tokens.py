"""Signed tokens (JWT) of an identity provider: the signature, then the claims.

The algorithm is not the token's choice: it must be one of ALGORITHMS, and it must be the one of the key that the provider
published under the token's key id. `none` and the symmetric ones do not exist here, so a public key can never be taken
for a secret.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from joserfc.errors import UnsupportedAlgorithmError
from joserfc.jws import JWSRegistry
from joserfc.jwt import decode
from joserfc.util import urlsafe_b64decode

from perdure.core.access import Principal
from perdure.core.errors import Unauthenticated
from perdure.server.auth.oidc import OidcSettings, principal_of
from perdure.server.auth.signing_keys import PublicKey, SigningKeys

ALGORITHMS: Final = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP", "Ed25519": "OKP"}
"""Algorithm -> type of its keys. `Ed25519` is the newer name of EdDSA on that curve, the only one we take."""
HEADER_BYTES_MAX: Final = 2048
NO_TOKEN: Final = "this is neither an API key nor a signed token that names its key (kid)"


class _Registry(JWSRegistry):
    """The library's, cut down to ours."""

    max_header_length = HEADER_BYTES_MAX

    def get_alg(self, name: str) -> Any:
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(f"{name} is not accepted")
        return self.algorithms[name]


_REGISTRY = _Registry(algorithms=list(ALGORITHMS), strict_check_header=False)


class _Header(msgspec.Struct):
    alg: str
    kid: str = ""


class Tokens:
    def __init__(
        self,
        settings: OidcSettings,
        keys: SigningKeys | None = None,
        clock_s: Callable[[], float] = time.time,
        *,
        needs_kid: bool = True,
    ) -> None:
        """`needs_kid`: a token names its key. An ID token need not, where its provider has one key alone (OpenID Connect Core, 10.1)."""
        self._settings = settings
        self.keys = keys or SigningKeys(settings)
        self._clock_s = clock_s
        self._needs_kid = needs_kid

    async def verify(self, token: str) -> Principal:
        return self.principal(await self.claims(token))

    def principal(self, claims: dict[str, object]) -> Principal:
        """Raises Unauthenticated where the claims are not for this server, not now, or give no role."""
        return principal_of(claims, self._settings, self._clock_s())

    async def claims(self, token: str) -> dict[str, object]:
        """What a token says whose signature holds."""
        header = _header(token)
        if not header.kid and self._needs_kid:
            raise Unauthenticated(NO_TOKEN)
        key = await self.keys.key(header.kid) if header.kid else await self.keys.only_key()
        if key is None or key.key_type != ALGORITHMS[header.alg] or key.get("alg", header.alg) != header.alg:
            raise Unauthenticated(
                "the token is signed with a key that its issuer does not publish for this: get a new one"
            )
        return _claims(token, key)

    def holds(self, principal: Principal) -> bool:
        """Whether the token of a principal is still valid."""
        return principal.expires_s is not None and self._clock_s() < principal.expires_s


def _header(token: str) -> _Header:
    """The header of the token, to find the key by. Trusted only once the signature is verified."""
    segment = token.partition(".")[0]
    try:
        header = msgspec.json.decode(urlsafe_b64decode(segment[: 2 * HEADER_BYTES_MAX].encode("ascii")), type=_Header)
    except (ValueError, RecursionError):
        raise Unauthenticated(NO_TOKEN) from None
    if header.alg not in ALGORITHMS:
        raise Unauthenticated(f"the token's algorithm is not accepted: only {', '.join(ALGORITHMS)} are")
    return header


def _claims(token: str, key: PublicKey) -> dict[str, object]:
    try:
        return decode(token, key, registry=_REGISTRY).claims
    # Malformed tokens make the library raise many kinds of errors; the answer is the same for all.
    except Exception:
        raise Unauthenticated("the token's signature does not hold") from None
