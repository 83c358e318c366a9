"""Tokens of an external identity provider: the settings, and the pure mapping from claims to a principal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeGuard

import msgspec

from perdure.core.access import GRANTS, Principal, Role
from perdure.core.errors import InvalidInput, Unauthenticated
from perdure.server.auth.addresses import is_loopback_url

LEEWAY_S: Final = 30.0
"""How far the clocks of the provider and of this machine may differ."""
SUBJECT_CHARS_MAX: Final = 200
TIME_S_MAX: Final = 1e11
"""No token's time lies beyond; arithmetic on what does is not worth trying."""
ALL_NAMESPACES: Final = "*"


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whose tokens are accepted, and how their claims are read. What no claim and no table grants is refused."""

    issuer: str
    """Equal to the token's `iss`, to the letter."""
    audience: str
    """Must be among the token's `aud`."""
    jwks_url: str | None = None
    """URL of the signing keys. None: read it from the issuer's `/.well-known/openid-configuration`."""
    role_claim: str = "perdure_role"
    """The claim that holds a role, or a list of groups. A dotted path leads into objects: `realm_access.roles`."""
    roles: Mapping[str, str] = {}
    """Value of the claim -> role. Empty: the value is the role's name. Of several roles the one that grants most counts."""
    namespace_claim: str | None = "perdure_namespace"
    """The claim that holds the one namespace, `*` for all of them. None: every token belongs to `namespace`."""
    namespaces: Mapping[str, str] = {}
    """Value of the claim -> namespace. Empty: the value is the namespace's name."""
    namespace: str = "default"
    """The namespace of every token, where `namespace_claim` is not used."""
    subject_claim: str = "sub"
    """Who it is, for the audit log."""
    client_id: str | None = None
    """The client that the provider knows this server as. With it, people sign in to the pages through the provider."""
    client_secret: str | None = None
    """The client's secret. None: a public client; the proof of the code (PKCE) stands alone."""
    scopes: str = "openid profile email"
    """What the provider is asked for, separated by spaces. `offline_access` lets `perdure login` go on without signing in again."""
    name: str | None = None
    """The provider's name on the sign-in page. None: the host of `issuer`."""
    device_client_id: str | None = None
    """The public client of `perdure login`. None: `client_id`."""

    def __post_init__(self) -> None:
        for name, url in (("issuer", self.issuer), ("jwks_url", self.jwks_url)):
            if url is not None and not url.startswith("https://") and not is_loopback_url(url):
                raise InvalidInput(
                    f"{name} {url!r} is not https: an attacker who can change a response could sign tokens. Use https."
                )
        if not self.audience:
            raise InvalidInput(
                "audience is empty: tokens meant for other services would be accepted. Name this server."
            )
        if self.client_id is not None and "openid" not in self.scopes.split():
            raise InvalidInput("scopes lacks `openid`: the provider would not say who signs in")
        unknown = sorted(set(self.roles.values()) - {r.value for r in Role})
        if unknown:
            raise InvalidInput(f"roles maps to {', '.join(unknown)}: choose from {', '.join(r.value for r in Role)}")


def principal_of(claims: Mapping[str, object], settings: OidcSettings, now_s: float) -> Principal:
    """The principal of a token whose signature holds. Raises Unauthenticated where a claim is missing or wrong."""
    _check_times(claims, now_s)
    if claims.get("iss") != settings.issuer:
        raise Unauthenticated("the token comes from another issuer than the one this server trusts")
    if settings.audience not in _texts(claims.get("aud")):
        raise Unauthenticated("the token is meant for another audience: ask your provider for one for this server")
    subject = _found(claims, settings.subject_claim)
    if not isinstance(subject, str) or not subject:
        raise Unauthenticated(f"the token has no claim {settings.subject_claim!r} that says whose it is")
    expires = claims["exp"]
    assert _is_time(expires)
    return Principal(
        subject=f"user:{_printable(subject)}",
        role=_role(claims, settings),
        namespace=_namespace(claims, settings),
        expires_s=float(expires) + LEEWAY_S,
    )


def _check_times(claims: Mapping[str, object], now_s: float) -> None:
    expires, begins, issued = claims.get("exp"), claims.get("nbf"), claims.get("iat")
    if not _is_time(expires):
        raise Unauthenticated("the token has no expiry (exp): tokens that hold for ever are not accepted")
    if now_s >= expires + LEEWAY_S:
        raise Unauthenticated("the token has expired: get a new one")
    for name, value in (("nbf", begins), ("iat", issued)):
        if value is None:
            continue
        if not _is_time(value) or now_s < value - LEEWAY_S:
            raise Unauthenticated(
                f"the token does not hold yet ({name}): compare this machine's clock with the provider's"
            )


def _role(claims: Mapping[str, object], settings: OidcSettings) -> Role:
    words = _texts(_found(claims, settings.role_claim))
    named = [settings.roles[w] for w in words if w in settings.roles] if settings.roles else words
    roles = [r for r in Role if r.value in named]
    if not roles:
        raise Unauthenticated(
            f"the token's claim {settings.role_claim!r} gives no role on this server: ask its administrator to map one"
        )
    return max(roles, key=lambda r: len(GRANTS[r]))


def _namespace(claims: Mapping[str, object], settings: OidcSettings) -> str | None:
    if settings.namespace_claim is None:
        return settings.namespace
    words = _texts(_found(claims, settings.namespace_claim))
    named = [settings.namespaces[w] for w in words if w in settings.namespaces] if settings.namespaces else words
    if len(named) != 1 or not named[0]:
        raise Unauthenticated(f"the token's claim {settings.namespace_claim!r} does not name exactly one namespace")
    return None if named[0] == ALL_NAMESPACES else named[0]


def _found(claims: Mapping[str, object], path: str) -> object:
    """A claim by its exact name (some are URLs), or by a path of names."""
    if path in claims:
        return claims[path]
    at: object = claims
    for part in path.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _is_time(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= TIME_S_MAX


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:SUBJECT_CHARS_MAX])
