"""Signed tokens of an identity provider: fixed algorithms, every claim checked, keys that rotate."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jws, jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from perdure.core.access import Permission, Principal, Role
from perdure.core.errors import InvalidInput, PerdureError, Unauthenticated, Unavailable
from perdure.server.auth import Authenticator, OidcSettings, Tokens
from perdure.server.auth.discovery import ANSWER_BYTES_MAX, DISCOVERY_PATH
from perdure.server.auth.oidc import LEEWAY_S, principal_of
from perdure.server.auth.signing_keys import SigningKeys, read_keys

RSA = RSAKey.generate_key(2048)
EC = ECKey.generate_key("P-256")
ED = OKPKey.generate_key("Ed25519")
AUDIENCE = "perdure-test"


class Provider:
    """An identity provider on loopback: a key set that tests change, and a count of who asked."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"rsa": RSA, "ec": EC, "ed": ED}
        self.raw: bytes | None = None
        self.status = 200
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked: list[str] = []
        self._server: asyncio.Server
        self._answering: list[asyncio.Task[None]] = []
        self.issuer = ""

    async def __aenter__(self) -> Provider:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.issuer = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.answers.set()
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._answering)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answering.append(asyncio.create_task(self._answer(reader, writer)))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readline()
        if not first:  # the server gave up before it asked
            writer.close()
            return
        path = first.split()[1].decode()
        while (await reader.readline()).strip():
            pass
        self.asked.append(path)
        await self.answers.wait()
        body = self.document(path)
        head = f"HTTP/1.1 {self.status} X\r\nlocation: {self.issuer}/elsewhere\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass

    def document(self, path: str) -> bytes:
        if self.raw is not None:
            return self.raw
        if path == DISCOVERY_PATH:
            return json.dumps({"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}).encode()
        return json.dumps({"keys": [k.as_dict(private=False) | {"kid": kid} for kid, k in self.keys.items()]}).encode()

    def settings(self, **more: Any) -> OidcSettings:
        return OidcSettings(**{"issuer": self.issuer, "audience": AUDIENCE, "jwks_url": f"{self.issuer}/keys", **more})

    def claims(self, **more: Any) -> dict[str, Any]:
        now = time.time()
        given = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "ada",
            "exp": now + 60,
            "nbf": now - 1,
            "iat": now - 1,
            "perdure_role": "operator",
            "perdure_namespace": "default",
            **more,
        }
        return {k: v for k, v in given.items() if v is not ...}

    def token(self, key: Any = RSA, kid: str = "rsa", alg: str = "RS256", **claims: Any) -> str:
        return sign({"alg": alg, "kid": kid}, self.claims(**claims), key)


def sign(header: dict[str, Any], claims: dict[str, Any], key: Any) -> str:
    registry = jws.JWSRegistry(algorithms=[header["alg"]], strict_check_header=False)
    registry.get_alg = lambda name: registry.algorithms[name]  # type: ignore[method-assign]  # no warnings about old names
    return jwt.encode(header, claims, key, registry=registry)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider() as running:
        yield running


class NoKeys:
    async def find(self, ident: str) -> None:
        return None

    async def touch(self, ident: str) -> None: ...


def authenticator(provider: Provider, **more: Any) -> Authenticator:
    return Authenticator(NoKeys(), Tokens(provider.settings(**more)))


async def enter(auth: Authenticator, token: str, permission: Permission | None = None) -> Principal:
    return await auth.check({"authorization": f"Bearer {token}"}, permission)


# -- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alg", "kid", "key"), [("RS256", "rsa", RSA), ("ES256", "ec", EC), ("EdDSA", "ed", ED), ("Ed25519", "ed", ED)]
)
async def test_each_accepted_algorithm_lets_its_owner_in(provider: Provider, alg: str, kid: str, key: Any) -> None:
    principal = await enter(authenticator(provider), provider.token(key, kid, alg), Permission.START)
    assert (principal.subject, principal.role, principal.namespace) == ("user:ada", Role.OPERATOR, "default")


async def test_a_token_without_a_signature_is_refused(provider: Provider) -> None:
    auth = authenticator(provider)
    body = part(provider.claims())
    good = provider.token()
    for token in (
        f"{part({'alg': 'none', 'kid': 'rsa'})}.{body}.",
        f"{part({'alg': 'None', 'kid': 'rsa'})}.{body}.",
        f"{part({'alg': '', 'kid': 'rsa'})}.{body}.",
        f"{part({'alg': 'RS256', 'kid': 'rsa'})}.{body}.",
        f"{part({'alg': ['RS256'], 'kid': 'rsa'})}.{body}.AAAA",
        good.rpartition(".")[0] + ".",
        good.rpartition(".")[0],
    ):
        with pytest.raises(Unauthenticated):
            await enter(auth, token)


async def test_a_public_key_is_never_taken_for_a_shared_secret(provider: Provider) -> None:
    auth = authenticator(provider)
    for secret in (RSA.as_pem(private=False), json.dumps(RSA.as_dict(private=False)).encode(), b"x" * 32):
        for alg, digest in (("HS256", "sha256"), ("HS384", "sha384"), ("HS512", "sha512")):
            body = f"{part({'alg': alg, 'kid': 'rsa'})}.{part(provider.claims())}"
            signature = base64.urlsafe_b64encode(hmac.digest(secret, body.encode(), digest)).rstrip(b"=").decode()
            with pytest.raises(Unauthenticated, match="algorithm"):
                await enter(auth, f"{body}.{signature}")


async def test_a_symmetric_short_or_foreign_key_in_the_set_is_left_out(provider: Provider) -> None:
    oct_key = OctKey.import_key(b"s" * 64)
    entries = [
        {**oct_key.as_dict(), "kid": "oct"},
        {"kty": "RSA", "e": "AQAB", "n": base64.urlsafe_b64encode(b"\xc1" * 128).decode().rstrip("="), "kid": "small"},
        {**RSA.as_dict(private=False), "kid": "enc", "use": "enc"},
        {**ECKey.generate_key("P-384").as_dict(private=False), "kid": "p384"},
        {**OKPKey.generate_key("X25519").as_dict(private=False), "kid": "x25519"},
        {"kty": "RSA", "kid": "broken"},
        {"kid": "nothing"},
        RSA.as_dict(private=False),
        {**EC.as_dict(private=False), "kid": "good", "use": "sig"},
    ]
    assert set(read_keys(json.dumps({"keys": entries}).encode())) == {"good"}


async def test_a_key_signs_only_by_its_own_algorithm(provider: Provider) -> None:
    auth = authenticator(provider)
    for key, kid, alg in (
        (RSA, "ec", "RS256"),
        (EC, "rsa", "ES256"),
        (ED, "ec", "EdDSA"),
        (RSA, "rsa", "RS384"),
        (RSA, "rsa", "PS256"),
    ):
        with pytest.raises(Unauthenticated):
            await enter(auth, provider.token(key, kid, alg))


async def test_a_tampered_token_is_refused(provider: Provider) -> None:
    auth = authenticator(provider)
    head, _, signature = provider.token().split(".")
    with pytest.raises(Unauthenticated, match="signature"):
        await enter(auth, f"{head}.{part(provider.claims(perdure_role='admin'))}.{signature}")
    stranger = RSAKey.generate_key(2048)
    with pytest.raises(Unauthenticated, match="signature"):
        await enter(auth, provider.token(stranger))


async def test_a_token_that_brings_its_own_key_is_refused(provider: Provider) -> None:
    stranger = RSAKey.generate_key(2048)
    auth = authenticator(provider)
    for more in (
        {"jwk": stranger.as_dict(private=False)},
        {"jku": "http://127.0.0.1:1/keys"},
        {"crit": ["b64"], "b64": False},
    ):
        with pytest.raises(Unauthenticated):
            await enter(auth, sign({"alg": "RS256", "kid": "rsa"} | more, provider.claims(), stranger))
    without_kid = sign({"alg": "RS256"}, provider.claims(), RSA)
    with pytest.raises(Unauthenticated, match="kid"):
        await enter(auth, without_kid)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(alphabet="abcdefABCDEF012345._-=", max_size=400),
        st.recursive(
            st.none() | st.booleans() | st.text(max_size=8),
            lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x),
            max_leaves=8,
        ).map(lambda v: f"{part(v)}.{part(v)}.AAAA"),
        st.just("." * 8000),
        st.just(base64.urlsafe_b64encode(b"[" * 2900).decode() + ".e30.AA"),
        st.just(base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"rsa","x":' + b"[" * 2900).decode() + ".e30.AA"),
    )
)
async def test_no_bytes_get_anything_but_a_refusal(token: str) -> None:
    provider = Provider()
    provider.issuer = "http://127.0.0.1:9"
    keys = SigningKeys(provider.settings())
    keys._keys, keys._fetched_at, keys._tried_at = {"rsa": RSA}, time.monotonic(), time.monotonic()
    auth = Authenticator(NoKeys(), Tokens(provider.settings(), keys))
    with pytest.raises(Unauthenticated):
        await enter(auth, token)


# -- claims -----------------------------------------------------------------------------------------------------------

PAST, FUTURE = -2 * LEEWAY_S, 2 * LEEWAY_S


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": ...}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": 10**400}, "exp"),
        ({"exp": -1}, "exp"),
        ({"iss": ...}, "issuer"),
        ({"iss": "http://127.0.0.1:1"}, "issuer"),
        ({"iss": ["x"]}, "issuer"),
        ({"aud": ...}, "audience"),
        ({"aud": "other"}, "audience"),
        ({"aud": ["other", AUDIENCE + "2"]}, "audience"),
        ({"aud": {AUDIENCE: 1}}, "audience"),
        ({"sub": ...}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": 7}, "sub"),
        ({"perdure_role": ...}, "role"),
        ({"perdure_role": "king"}, "role"),
        ({"perdure_role": ""}, "role"),
        ({"perdure_role": []}, "role"),
        ({"perdure_role": {"admin": 1}}, "role"),
        ({"perdure_role": "ADMIN"}, "role"),
        ({"perdure_namespace": ...}, "namespace"),
        ({"perdure_namespace": ""}, "namespace"),
        ({"perdure_namespace": ["a", "b"]}, "namespace"),
        ({"nbf": "soon"}, "nbf"),
        ({"iat": []}, "iat"),
    ],
)
async def test_a_missing_or_wrong_claim_is_refused(provider: Provider, claims: dict[str, Any], why: str) -> None:
    with pytest.raises(Unauthenticated, match=why):
        await enter(authenticator(provider), provider.token(**claims))


async def test_times_are_checked_with_a_small_leeway(provider: Provider) -> None:
    auth = authenticator(provider)
    now = time.time()
    await enter(auth, provider.token(exp=now - LEEWAY_S / 2, nbf=now + LEEWAY_S / 2))
    with pytest.raises(Unauthenticated, match="expired"):
        await enter(auth, provider.token(exp=now + PAST))
    for name in ("nbf", "iat"):
        with pytest.raises(Unauthenticated, match="does not hold yet"):
            await enter(auth, provider.token(**{name: now + FUTURE}))


async def test_a_stream_ends_with_its_token(provider: Provider) -> None:
    now = [time.time()]
    auth = Authenticator(NoKeys(), Tokens(provider.settings(), clock_s=lambda: now[0]))
    principal = await enter(auth, provider.token())
    assert await auth.recheck(principal)
    now[0] += 60 + LEEWAY_S + 1
    assert not await auth.recheck(principal)


async def test_claims_are_mapped_to_roles_and_namespaces(provider: Provider) -> None:
    auth = authenticator(
        provider,
        role_claim="realm_access.roles",
        roles={"ops": "operator", "boss": "admin", "bots": "worker"},
        namespace_claim="https://example.com/team",
        namespaces={"t1": "payments", "all": "*"},
        subject_claim="email",
    )
    more = {"perdure_role": "admin", "email": "ada@example.com", "https://example.com/team": "t1"}
    principal = await enter(auth, provider.token(realm_access={"roles": ["staff", "ops"]}, **more))
    assert (principal.subject, principal.role, principal.namespace) == (
        "user:ada@example.com",
        Role.OPERATOR,
        "payments",
    )
    both = await enter(
        auth,
        provider.token(realm_access={"roles": ["bots", "boss", "ops"]}, **more | {"https://example.com/team": "all"}),
    )
    assert (both.role, both.namespace) == (Role.ADMIN, None)
    for roles in ({"roles": ["staff"]}, {"roles": ["admin"]}, {}, []):
        with pytest.raises(Unauthenticated):
            await enter(auth, provider.token(realm_access=roles, **more))
    with pytest.raises(Unauthenticated):
        await enter(
            auth, provider.token(realm_access={"roles": ["ops"]}, **more | {"https://example.com/team": "payments"})
        )


async def test_without_a_namespace_claim_every_token_belongs_to_one_namespace(provider: Provider) -> None:
    auth = authenticator(provider, namespace_claim=None, namespace="team")
    assert (await enter(auth, provider.token(perdure_namespace="*"))).namespace == "team"


def test_a_name_in_the_audit_log_is_short_and_printable() -> None:
    settings_ = OidcSettings(issuer="https://a.example", audience="p", namespace_claim=None)
    claims = {
        "iss": "https://a.example",
        "aud": "p",
        "exp": 100,
        "sub": "a\nb\x1b[31m" + "x" * 999,
        "perdure_role": "viewer",
    }
    subject = principal_of(claims, settings_, 50).subject
    assert subject.isprintable()
    assert len(subject) < 250


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "http://idp.example.com"},
        {"jwks_url": "http://idp.example.com/keys"},
        {"jwks_url": "ftp://127.0.0.1.example.com"},
        {"audience": ""},
        {"roles": {"x": "king"}},
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        OidcSettings(**{"issuer": "https://idp.example.com", "audience": "p", **wrong})


# -- keys that come and go --------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_rotation_brings_new_keys_and_takes_old_ones_away(provider: Provider) -> None:
    clock = Clock()
    auth = Authenticator(
        NoKeys(), Tokens(provider.settings(), SigningKeys(provider.settings(), refetch_s=30, age_s=300, clock=clock))
    )
    old = provider.token()
    await enter(auth, old)
    newer = RSAKey.generate_key(2048)
    provider.keys = {"newer": newer}
    clock.now += 31
    await enter(auth, provider.token(newer, "newer"))
    with pytest.raises(Unauthenticated, match="does not publish"):
        await enter(auth, old)
    assert len(provider.asked) == 2


async def test_a_key_that_was_taken_away_is_gone_when_the_set_has_aged(provider: Provider) -> None:
    clock = Clock()
    auth = Authenticator(
        NoKeys(), Tokens(provider.settings(), SigningKeys(provider.settings(), age_s=300, clock=clock))
    )
    token = provider.token(exp=time.time() + 9999)
    await enter(auth, token)
    del provider.keys["rsa"]
    clock.now += 299
    await enter(auth, token)
    clock.now += 2
    with pytest.raises(Unauthenticated):
        await enter(auth, token)


async def test_made_up_key_ids_do_not_hammer_the_provider(provider: Provider) -> None:
    clock = Clock()
    keys = SigningKeys(provider.settings(), refetch_s=30, clock=clock)
    auth = Authenticator(NoKeys(), Tokens(provider.settings(), keys))
    await enter(auth, provider.token())
    for n in range(50):
        with pytest.raises(Unauthenticated):
            await enter(auth, provider.token(kid=f"made-up-{n}"))
    assert len(provider.asked) == 1
    clock.now += 31
    await asyncio.gather(*(enter(auth, provider.token(kid=f"x{n}")) for n in range(20)), return_exceptions=True)
    assert len(provider.asked) == 2


async def test_the_issuer_tells_where_its_keys_are(provider: Provider) -> None:
    await enter(authenticator(provider, jwks_url=None), provider.token())
    assert provider.asked == [DISCOVERY_PATH, "/keys"]
    provider.raw = json.dumps({"issuer": "https://else.example", "jwks_uri": f"{provider.issuer}/keys"}).encode()
    with pytest.raises(Unavailable):
        await enter(authenticator(provider, jwks_url=None), provider.token())
    provider.raw = json.dumps({"issuer": provider.issuer, "jwks_uri": "http://idp.example.com/keys"}).encode()
    with pytest.raises(Unavailable):
        await enter(authenticator(provider, jwks_url=None), provider.token())


async def test_while_the_provider_is_away_known_keys_hold_for_a_while(provider: Provider) -> None:
    clock = Clock()
    keys = SigningKeys(provider.settings(), age_s=300, stale_s=1000, clock=clock)
    auth = Authenticator(NoKeys(), Tokens(provider.settings(), keys))
    token = provider.token()
    await enter(auth, token)
    provider.status = 500
    clock.now += 900
    await enter(auth, token)
    clock.now += 200
    with pytest.raises(Unavailable, match="out of reach"):
        await enter(auth, token)
    provider.status = 200
    clock.now += 31
    await enter(auth, token)


@pytest.mark.parametrize("trouble", ["oversized", "redirect", "not json", "deep", "slow", "nobody"])
async def test_trouble_with_the_provider_lets_nobody_in(
    provider: Provider, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.server.auth.signing_keys.JWKS_S_MAX", 0.3)
    more: dict[str, Any] = {}
    match trouble:
        case "oversized":
            provider.raw = provider.document("/keys")[:-1] + b" " * ANSWER_BYTES_MAX + b"}"
        case "redirect":
            provider.status = 302
        case "not json":
            provider.raw = b"<html>"
        case "deep":
            provider.raw = b'{"keys":' + b"[" * 100_000
        case "slow":
            provider.answers.clear()
        case _:
            more["jwks_url"] = "http://127.0.0.1:9/keys"
    with pytest.raises(PerdureError) as refused:
        await enter(authenticator(provider, **more), provider.token())
    assert isinstance(refused.value, Unavailable)


async def test_without_a_provider_tokens_are_not_looked_at(provider: Provider) -> None:
    with pytest.raises(Unauthenticated, match="not an API key"):
        await enter(Authenticator(NoKeys()), provider.token())
    assert provider.asked == []
