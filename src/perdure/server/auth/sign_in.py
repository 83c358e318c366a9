"""Signing people in through an identity provider: the authorization code with PKCE (RFC 6749, RFC 7636, OpenID Connect Core).

    begin    state, nonce and verifier are drawn, kept in a signed cookie of the browser, and the browser goes to the provider
    finish   the provider's answer must name that state; its code is exchanged with the verifier; the ID token must name that nonce

The cookie ties the answer to the browser that asked: the answer to an attacker's sign-in signs no other browser in. Tokens are used to
say who it is and then dropped; they are neither stored nor logged.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx2
import msgspec
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.client import OAuth2Client
from authlib.oauth2.rfc6749.parameters import prepare_token_request

from perdure.core.access import Principal
from perdure.core.errors import InvalidInput, NotFound, Unauthenticated, Unavailable
from perdure.server.auth.discovery import Discovery, bounded, discover
from perdure.server.auth.oidc import OidcSettings
from perdure.server.auth.signing_keys import SigningKeys
from perdure.server.auth.tokens import Tokens

log = logging.getLogger("perdure.auth")

PROVIDER_S_MAX: Final = 10.0
DISCOVERY_AGE_S: Final = 300.0
FLOW_S: Final = 600.0
"""How long a person may take at the provider."""
NEXT_CHARS_MAX: Final = 2_000
DRAWN_BYTES: Final = 32
_PURPOSE: Final = b"perdure sign-in"
_NAMES: Final = ("name", "preferred_username", "email")
"""Claims that name a person, best first."""


class Began(msgspec.Struct, frozen=True):
    """A sign-in that was begun in a browser; in its cookie."""

    state: str
    nonce: str
    verifier: str
    next: str
    expires_s: float


class Vouched(msgspec.Struct, frozen=True):
    """A person, as the provider says, and where in our pages they wanted to go."""

    principal: Principal
    name: str
    next: str


class DeviceClient(msgspec.Struct, frozen=True):
    """What `perdure login` needs to know to ask the provider itself."""

    issuer: str
    client_id: str
    scope: str
    audience: str
    device_authorization_endpoint: str
    token_endpoint: str


class OidcSignIn:
    def __init__(
        self,
        settings: OidcSettings,
        keys: SigningKeys,
        secret: Callable[[], Awaitable[bytes]],
        *,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """`secret`: the same on every server of a database; the answer may reach another server than the one that was asked."""
        assert settings.client_id, "signing in needs a client id"
        self._settings, self._client_id = settings, settings.client_id
        # An ID token is made for the client; the audience of access tokens may be another one.
        own = msgspec.structs.replace(settings, audience=settings.client_id)
        self._tokens = Tokens(own, keys, clock_s, needs_kid=False)
        self._secret, self._clock_s = secret, clock_s
        self._found: tuple[Discovery, float] | None = None

    @property
    def name(self) -> str:
        return self._settings.name or urlsplit(self._settings.issuer).hostname or self._settings.issuer

    async def begin(self, callback: str, next: str) -> tuple[str, str]:
        """Where the browser goes, and what its cookie keeps meanwhile."""
        check_next(next)
        provider = await self._provider()
        state, nonce, verifier = (secrets.token_urlsafe(DRAWN_BYTES) for _ in range(3))
        client = OAuth2Client(
            None,
            client_id=self._client_id,
            scope=self._settings.scopes,
            redirect_uri=callback,
            code_challenge_method="S256",
        )
        url, _ = client.create_authorization_url(
            provider.authorization_endpoint, state=state, code_verifier=verifier, nonce=nonce
        )
        began = Began(state, nonce, verifier, next, self._clock_s() + FLOW_S)
        return str(url), seal(began, await self._secret())

    async def finish(self, callback: str, kept: str, answer: Mapping[str, str]) -> Vouched:
        """`kept`: the cookie. `answer`: the query with which the provider sent the browser back."""
        began = opened(kept, await self._secret(), self._clock_s())
        if not hmac.compare_digest(answer.get("state", "").encode(), began.state.encode()):
            raise Unauthenticated("the answer belongs to another sign-in than the one this browser began: try again")
        if answer.get("iss", self._settings.issuer) != self._settings.issuer:
            raise Unauthenticated("the answer comes from another provider than the one this browser was sent to")
        if "error" in answer:
            raise Unauthenticated(f"the identity provider did not sign you in: {_refusal(answer)}")
        if not answer.get("code"):
            raise Unauthenticated("the identity provider's answer has no code: try again")
        claims = await self._tokens.claims(await self._exchanged(answer["code"], began.verifier, callback))
        principal = self._tokens.principal(claims)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), began.nonce.encode()):
            raise Unauthenticated("the identity provider's token was made for another sign-in: try again")
        if claims.get("azp", self._client_id) != self._client_id:
            raise Unauthenticated("the identity provider's token was made for another client")
        return Vouched(principal, _shown_name(claims) or principal.subject.partition(":")[2], began.next)

    async def device_client(self) -> DeviceClient:
        """NotFound where the provider has no device flow."""
        provider = await self._provider()
        if not provider.device_authorization_endpoint:
            raise NotFound(f"{self.name} does not offer the device flow: sign in with an API key (`--api-key`)")
        return DeviceClient(
            issuer=self._settings.issuer,
            client_id=self._settings.device_client_id or self._client_id,
            scope=self._settings.scopes,
            audience=self._settings.audience,
            device_authorization_endpoint=provider.device_authorization_endpoint,
            token_endpoint=provider.token_endpoint,
        )

    async def _exchanged(self, code: str, verifier: str, callback: str) -> str:
        """The ID token for a code."""
        provider = await self._provider()
        body = prepare_token_request("authorization_code", redirect_uri=callback, code=code, code_verifier=verifier)
        method = _client_method(self._settings, provider)
        url, headers, body = ClientAuth(self._client_id, self._settings.client_secret, method).prepare(
            "POST",
            provider.token_endpoint,
            {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"},
            body,
        )
        try:
            async with asyncio.timeout(PROVIDER_S_MAX), httpx2.AsyncClient(timeout=PROVIDER_S_MAX) as client:
                status, content = await bounded(
                    client, client.build_request("POST", url, headers=headers, content=body)
                )
            token = msgspec.json.decode(content, type=_TokenAnswer)
        except (httpx2.HTTPError, OSError, TimeoutError, ValueError, RecursionError) as error:
            raise self._out_of_reach(error) from None
        if status != 200 or not token.id_token:
            log.warning("%s exchanged no code: status %d, error %r", self._settings.issuer, status, token.error[:100])
            raise Unauthenticated(
                f"the identity provider did not accept this sign-in ({_word(token.error) or f'status {status}'}): try again. "
                "If it stays so, an administrator compares PERDURE_OIDC_CLIENT_ID, its secret and the callback address with the provider's."
            )
        return token.id_token

    async def _provider(self) -> Discovery:
        now = self._clock_s()
        if self._found is not None and 0 <= now - self._found[1] < DISCOVERY_AGE_S:
            return self._found[0]
        try:
            async with asyncio.timeout(PROVIDER_S_MAX), httpx2.AsyncClient(timeout=PROVIDER_S_MAX) as client:
                found = await discover(client, self._settings.issuer)
            if not found.authorization_endpoint or not found.token_endpoint:
                raise ValueError("its discovery document names no authorization or token endpoint")
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, TimeoutError, ValueError, RecursionError) as error:
            raise self._out_of_reach(error) from None
        self._found = (found, now)
        return found

    def _out_of_reach(self, error: Exception) -> Unavailable:
        log.warning("%s cannot be asked: %s", self._settings.issuer, str(error) or type(error).__name__)
        return Unavailable(
            "the identity provider cannot be reached from this server: try again later, or sign in with an API key"
        )


class _TokenAnswer(msgspec.Struct):
    id_token: str = ""
    error: str = ""


def _client_method(settings: OidcSettings, provider: Discovery) -> str:
    """How the client proves itself at the token endpoint."""
    if not settings.client_secret:
        return "none"
    known = provider.token_endpoint_auth_methods_supported
    only_post = "client_secret_post" in known and "client_secret_basic" not in known
    return "client_secret_post" if only_post else "client_secret_basic"


def seal(began: Began, secret: bytes) -> str:
    body = urlsafe_b64encode(msgspec.json.encode(began)).rstrip(b"=")
    return f"{body.decode()}.{_signature(body, secret)}"


def opened(kept: str, secret: bytes, now_s: float) -> Began:
    """Raises Unauthenticated for what this server did not seal, or too long ago."""
    body, _, signature = kept.partition(".")
    if not kept:
        raise Unauthenticated("this browser has begun no sign-in, or its cookies are switched off: try again")
    if not hmac.compare_digest(signature.encode(), _signature(body.encode(), secret).encode()):
        raise Unauthenticated("the sign-in that this browser began was changed: try again")
    began = msgspec.json.decode(urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Began)
    if now_s >= began.expires_s:
        raise Unauthenticated(f"the sign-in took longer than {FLOW_S / 60:.0f} minutes: try again")
    return began


def _signature(body: bytes, secret: bytes) -> str:
    # A key of its own: what signs links must not sign this.
    key = hmac.digest(secret, _PURPOSE, "sha256")
    return urlsafe_b64encode(hmac.digest(key, body, "sha256")).rstrip(b"=").decode()


def check_next(path: str) -> None:
    """Only a path of this server. Browsers read `//host` and `/\\host` as another site, and drop tabs and line breaks."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    if not is_local or len(path) > NEXT_CHARS_MAX:
        raise InvalidInput(
            f"`next` must be a path of this server, such as /runs, of at most {NEXT_CHARS_MAX} characters"
        )


def _refusal(answer: Mapping[str, str]) -> str:
    """The provider's words, which come through the address bar: cut, and shown as text."""
    said = _word(answer.get("error_description", ""))
    return f"{_word(answer['error'])}{f' ({said})' if said else ''}. Try again, or ask its administrator."


def _word(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:200]


def _shown_name(claims: Mapping[str, object]) -> str:
    return next((v for v in (claims.get(name) for name in _NAMES) if isinstance(v, str) and v), "")
