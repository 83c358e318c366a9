"""API keys: what is stored, who gets in, and how soon somebody is out."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.core.access import GRANTS, NewKey, Permission, Principal, Role
from perdure.core.api_keys import compose, present
from perdure.core.errors import Forbidden, InvalidInput, NotFound, RateLimited, Unauthenticated
from perdure.server.auth import Authenticator, OpenAccess, authenticator, namespace_of
from perdure.store import api_keys as store_keys
from perdure.store.api_keys import Keys
from perdure.store.connections import Connections


@dataclass
class World:
    dsn: str
    keys: Keys
    auth: Authenticator
    sql: Any

    async def key(self, role: Role = Role.VIEWER, **more: Any) -> str:
        _, key = await self.keys.create(NewKey(name="test", role=role, created_by="test", **more))
        return key

    async def enter(self, key: str, permission: Permission | None = None) -> Principal:
        return await self.auth.check({"authorization": f"Bearer {key}"}, permission)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def world(dsn: str, clock: Clock) -> AsyncIterator[World]:
    pool = Connections(dsn)
    await pool.open()
    sql = await asyncpg.connect(dsn)
    yield World(dsn, Keys(pool), Authenticator(Keys(pool), clock=clock), sql)
    await sql.close()
    await pool.close()


def wrong(key: str) -> str:
    """The same id with another secret."""
    return compose(key[3:15], secrets.token_urlsafe(32))


# -- what a key is ----------------------------------------------------------------------------------------------------


async def test_a_key_has_256_secret_bits_and_the_database_has_only_their_hash(world: World) -> None:
    key = await world.key()
    match = re.fullmatch(r"pd_([A-Za-z0-9]{12})_([A-Za-z0-9_-]{43})", key)
    assert match is not None
    row = await world.sql.fetchrow("select * from perdure.api_key where id = $1", match[1])
    assert row["hash"] == sha256(match[2].encode()).digest()
    assert match[2] not in repr(dict(row))
    assert not await world.sql.fetchval(
        "select exists(select from perdure.audit where detail::text like $1)", f"%{match[2]}%"
    )


async def test_no_two_keys_are_alike(world: World) -> None:
    keys = {await world.key() for _ in range(20)}
    assert len(keys) == 20
    assert len({k[3:15] for k in keys}) == 20


async def test_a_key_gives_the_principal_it_was_made_for(world: World) -> None:
    await store_keys.create_namespace(world.dsn, "team", by="test")
    key = await world.key(Role.OPERATOR, namespace="team", scopes=frozenset({Permission.START}), rate_per_s=7.5)
    assert await world.enter(key) == Principal(
        subject=f"key:{key[3:15]}",
        role=Role.OPERATOR,
        namespace="team",
        scopes=frozenset({Permission.START}),
        rate_per_s=7.5,
    )


async def test_the_secret_is_compared_in_constant_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    monkeypatch.setattr(authenticator, "compare_digest", spy)
    key = await world.key()
    await world.enter(key)
    presented = present(key)
    assert presented is not None
    assert (presented.hash, presented.hash) in compared
    compared.clear()
    with pytest.raises(Unauthenticated):
        await world.enter(wrong(await world.key()))
    assert compared
    compared.clear()
    with pytest.raises(Unauthenticated):
        await world.enter(compose("x" * 12, secrets.token_urlsafe(32)))
    assert compared, "an unknown id is compared too"


# -- who stays out ----------------------------------------------------------------------------------------------------


BAD_HEADERS = [
    "",
    " ",
    "Bearer",
    "Bearer ",
    "Bearer  ",
    "Basic dXNlcjpwdw==",
    "bearer",
    "Token pd_x",
    "Bearer pd_",
    "Bearer pd__",
    "Bearer " + "x" * 9000,
    "Bearer pd_" + "a" * 12 + "_",
    "Bearer pd_" + "a" * 12 + "_" + "b" * 42,
    "Bearer pd_" + "a" * 12 + "_" + "b" * 44,
    "Bearer pd_" + "a" * 12 + "_" + "b" * 43 + "\n",
    "Bearer pd_' or 1=1 --x_" + "b" * 43,
    "Bearer é",
    "Bearer a b",
    "Bearer a, Bearer b",
    "Bearer pd_" + "a" * 12 + "_" + "b" * 43,
    "Bearer ..",
    "Bearer eyJhbGciOiJub25lIn0.e30.",
    "\x00",
]


@pytest.mark.parametrize("header", BAD_HEADERS)
async def test_a_malformed_unknown_or_oversized_credential_is_refused(world: World, header: str) -> None:
    with pytest.raises(Unauthenticated):
        await world.auth.check({"authorization": header}, None)


async def test_no_credential_is_refused_even_where_no_permission_is_needed(world: World) -> None:
    with pytest.raises(Unauthenticated, match="Authorization: Bearer"):
        await world.auth.check({}, None)


async def test_a_key_anywhere_but_in_the_authorization_header_is_not_looked_at(world: World) -> None:
    key = await world.key(Role.ADMIN)
    for name in ("x-api-key", "cookie", "proxy-authorization", "api_key"):
        with pytest.raises(Unauthenticated):
            await world.auth.check({name: f"Bearer {key}"}, None)


async def test_a_wrong_secret_is_refused_without_a_word_about_the_key(world: World) -> None:
    key = await world.key()
    await world.keys.revoke(key[3:15], None)
    with pytest.raises(Unauthenticated) as refused:
        await world.enter(wrong(key))
    assert "revoked" not in str(refused.value)
    assert "no such API key" in str(refused.value)


async def test_a_key_expires_by_the_database_clock(world: World) -> None:
    key = await world.key(expires_in_us=3_600_000_000)
    await world.enter(key)
    await world.sql.execute("update perdure.api_key set expires_at = now()")
    with pytest.raises(Unauthenticated, match="expired"):
        await world.enter(key)


async def test_a_revoked_key_is_refused_at_once_by_every_server(world: World, dsn: str) -> None:
    pool = Connections(dsn)
    await pool.open()
    try:
        other = Authenticator(Keys(pool))
        key = await world.key()
        headers = {"authorization": f"Bearer {key}"}
        for _ in range(3):
            await world.auth.check(headers, None)
            principal = await other.check(headers, None)
        assert await other.recheck(principal)
        await world.keys.revoke(key[3:15], None)
        for auth in (world.auth, other):
            with pytest.raises(Unauthenticated, match="revoked"):
                await auth.check(headers, None)
            assert not await auth.recheck(principal)
    finally:
        await pool.close()


async def test_the_first_revocation_stands(world: World) -> None:
    key = await world.key()
    first = await world.keys.revoke(key[3:15], None)
    assert first.revoked_us is not None
    assert (await world.keys.revoke(key[3:15], None)).revoked_us == first.revoked_us
    with pytest.raises(NotFound):
        await world.keys.revoke("nobody", None)


async def test_keys_of_a_deleted_namespace_end_with_it(world: World) -> None:
    await store_keys.create_namespace(world.dsn, "team", by="test")
    key = await world.key(namespace="team")
    await world.enter(key)
    await store_keys.delete_namespace(world.dsn, "team", by="test")
    with pytest.raises(Unauthenticated):
        await world.enter(key)


async def test_a_stream_ends_when_its_key_is_narrowed(world: World) -> None:
    key = await world.key(Role.DEVELOPER)
    principal = await world.enter(key)
    assert await world.auth.recheck(principal)
    await world.sql.execute("update perdure.api_key set role = 'viewer'")
    assert not await world.auth.recheck(principal)
    assert not await world.auth.recheck(Principal(subject="user:ada", role=Role.ADMIN, expires_s=1e11))
    assert not await world.auth.recheck(Principal(subject="dev", role=Role.ADMIN))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.one_of(
        st.text(max_size=300),
        st.text(max_size=300).map("Bearer {}".format),
        st.from_regex(r"pd_[A-Za-z0-9]{12}_[A-Za-z0-9_-]{43}", fullmatch=True).map("Bearer {}".format),
        st.from_regex(r"[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}", fullmatch=True).map(
            "bearer {}".format
        ),
    )
)
async def test_no_header_gets_anything_but_a_refusal(world: World, header: str) -> None:
    with pytest.raises((Unauthenticated, RateLimited)):
        await world.auth.check({"authorization": header}, None)


# -- what a key may do ------------------------------------------------------------------------------------------------


async def test_a_role_may_do_exactly_what_the_table_grants(world: World) -> None:
    for role in Role:
        key = await world.key(role)
        for permission in Permission:
            if permission in GRANTS[role]:
                assert (await world.enter(key, permission)).role is role
            else:
                with pytest.raises(Forbidden, match=permission.value):
                    await world.enter(key, permission)


def test_the_table_of_grants() -> None:
    """Written out, so that a change of it is a change of this."""
    table = {role.value: " ".join(sorted(p.value for p in GRANTS[role])) for role in Role}
    assert table == {
        "viewer": "read",
        "operator": "operate read start",
        "developer": "develop operate read start work",
        "worker": "work",
        "admin": "admin commands develop operate read start work",
    }


async def test_scopes_narrow_a_role_and_never_widen_it(world: World) -> None:
    key = await world.key(Role.OPERATOR, scopes=frozenset({Permission.READ, Permission.ADMIN}))
    await world.enter(key, Permission.READ)
    for permission in (Permission.START, Permission.OPERATE, Permission.ADMIN):
        with pytest.raises(Forbidden):
            await world.enter(key, permission)
    empty = await world.key(Role.ADMIN, scopes=frozenset())
    for permission in Permission:
        with pytest.raises(Forbidden):
            await world.enter(empty, permission)
    unknown = await world.key(Role.ADMIN, scopes=frozenset({Permission.READ}))
    await world.sql.execute("update perdure.api_key set scopes = '{everything}' where id = $1", unknown[3:15])
    with pytest.raises(Forbidden):
        await world.enter(unknown, Permission.READ)


def test_a_namespace_that_is_not_yours_does_not_exist() -> None:
    bound = Principal(subject="key:a", role=Role.VIEWER, namespace="team")
    free = Principal(subject="key:b", role=Role.VIEWER)
    assert namespace_of(bound, None) == "team"
    assert namespace_of(bound, "team") == "team"
    assert namespace_of(free, None) == "default"
    assert namespace_of(free, "team") == "team"
    for foreign in ("default", "Team", "team ", "*", "x" * 5000):
        with pytest.raises(NotFound):
            namespace_of(bound, foreign)


# -- how often --------------------------------------------------------------------------------------------------------


async def test_a_key_has_its_own_rate_and_a_burst(world: World, clock: Clock) -> None:
    slow, other = await world.key(rate_per_s=2.0), await world.key()
    for _ in range(4):
        await world.enter(slow)
    with pytest.raises(RateLimited) as refused:
        await world.enter(slow)
    assert refused.value.retry_after_s == pytest.approx(0.5)
    await world.enter(other)
    clock.now += 0.51
    await world.enter(slow)
    with pytest.raises(RateLimited):
        await world.enter(slow)


async def test_guessing_is_slow_and_does_not_lock_out_the_owner(world: World, clock: Clock) -> None:
    key = await world.key()
    for _ in range(authenticator.FAILURES_BURST):
        with pytest.raises(Unauthenticated):
            await world.enter(wrong(key))
    with pytest.raises(RateLimited) as refused:
        await world.enter(wrong(key))
    assert refused.value.retry_after_s > 1
    with pytest.raises(RateLimited):
        await world.enter(key)
    clock.now += 60
    await world.enter(key)
    for _ in range(authenticator.FAILURES_BURST + 5):
        with pytest.raises((Unauthenticated, RateLimited)):
            await world.enter(wrong(key))
    await world.enter(key)
    await world.keys.revoke(key[3:15], None)
    with pytest.raises(Unauthenticated, match="revoked"):
        await world.enter(key)


async def test_memory_of_rates_and_failures_is_bounded(world: World) -> None:
    auth = Authenticator(world.keys, buckets_max=20)
    for n in range(60):
        with pytest.raises(Unauthenticated):
            await auth.check({"authorization": f"Bearer {compose(f'{n:012}', secrets.token_urlsafe(32))}"}, None)
    for _ in range(30):
        await auth.check({"authorization": f"Bearer {await world.key()}"}, None)
    assert len(auth._failures) <= 20
    assert len(auth._rates) <= 20
    assert len(auth._known) <= 20


async def test_the_last_use_is_written_at_most_once_a_minute(world: World) -> None:
    key = await world.key()
    assert await world.sql.fetchval("select last_used_at from perdure.api_key") is None
    await world.enter(key)
    first = await world.sql.fetchval("select last_used_at from perdure.api_key")
    assert first is not None
    await world.enter(key)
    assert await world.sql.fetchval("select last_used_at from perdure.api_key") == first
    await world.sql.execute("update perdure.api_key set last_used_at = now() - interval '2 minutes'")
    await world.enter(key)
    assert await world.sql.fetchval("select last_used_at > now() - interval '1 minute' from perdure.api_key")


# -- gRPC, development ------------------------------------------------------------------------------------------------


async def test_metadata_of_a_call_is_checked_the_same_way(world: World) -> None:
    key = await world.key(Role.WORKER)
    entry = ("authorization", f"Bearer {key}")
    assert (
        await world.auth.check_metadata([("user-agent", "x"), ("trace-bin", b"\x00"), entry], Permission.WORK)
    ).role is Role.WORKER
    with pytest.raises(Forbidden):
        await world.auth.check_metadata([entry], Permission.READ)
    for metadata in (
        [],
        [("authorization-bin", b"x")],
        [("authorization", b"x")],
        [entry, entry],
        [("x-api-key", key)],
    ):
        with pytest.raises(Unauthenticated):
            await world.auth.check_metadata(metadata, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"])
async def test_open_access_is_for_this_machine(host: str) -> None:
    auth = OpenAccess(host)
    for permission in (None, *Permission):
        assert (await auth.check({}, permission)).subject == "dev"
    assert await auth.recheck(await auth.check({"authorization": "anything"}, None))
    assert (await auth.check_metadata([], Permission.WORK)).subject == "dev"


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "",
        "10.0.0.1",
        "example.com",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "::ffff:10.0.0.1",
        "*",
    ],
)
def test_open_access_to_others_cannot_be_built(host: str) -> None:
    with pytest.raises(InvalidInput, match="perdure api-key create"):
        OpenAccess(host)


# -- administration ---------------------------------------------------------------------------------------------------


async def test_lists_show_everything_but_the_secret_in_pages_by_id(world: World) -> None:
    await store_keys.create_namespace(world.dsn, "team", by="test")
    made = sorted([(await world.key())[3:15] for _ in range(4)] + [(await world.key(namespace="team"))[3:15]])
    pages: list[str] = []
    after = None
    while page := await world.keys.list(None, after, 2):
        pages += [k.id for k in page]
        after = page[-1].id
    assert pages == made
    (own,) = await world.keys.list("team", None, 10)
    assert own.namespace == "team"
    assert not hasattr(own, "hash")
    with pytest.raises(NotFound):
        await world.keys.revoke(pages[0] if pages[0] != own.id else pages[1], "team")
    assert (await world.keys.revoke(own.id, "team")).revoked_us is not None


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": "a\nb"},
        {"rate_per_s": 0.0},
        {"rate_per_s": float("nan")},
        {"rate_per_s": float("inf")},
        {"expires_in_us": 0},
        {"expires_in_us": -1},
        {"expires_in_us": 1 << 62},
    ],
)
async def test_a_key_that_makes_no_sense_is_not_created(world: World, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await world.keys.create(NewKey(**{"name": "n", "role": Role.VIEWER, **bad}))


async def test_a_key_for_an_unknown_namespace_is_not_created(world: World) -> None:
    with pytest.raises(NotFound):
        await world.key(namespace="nowhere")
