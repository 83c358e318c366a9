"""Which keys may store and read content, over gRPC and REST, and that content stays in its namespace.

The acts need no single permission, so the table of acts says None; who may is written out here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import msgspec
import pytest

from perdure.core.access import NewKey, Permission, Role
from perdure.core.api import payloads
from perdure.core.api.payloads import AnnouncePayloads, FindPayload, GetPayload, PutPayload
from perdure.core.payload_port import AnnouncedPayload
from perdure.core.payloads import digest_of
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings
from perdure.store import api_keys as store_keys
from perdure.store.api_keys import Keys
from perdure.wire import acts
from tests.server.test_matrix import API, World, ask, call, in_session

CONTENT = b"secret words"
DIGEST = digest_of(CONTENT)

WRITERS = {Role.OPERATOR, Role.DEVELOPER, Role.WORKER, Role.ADMIN}
READERS = {Role.VIEWER, *WRITERS}
WRITES: dict[str, Any] = {
    "payload.announce": AnnouncePayloads("", [AnnouncedPayload(DIGEST, len(CONTENT))]),
    "payload.put": PutPayload(DIGEST, len(CONTENT), 0, CONTENT),
}
READS: dict[str, Any] = {"payload.get": GetPayload(DIGEST), "payload.find": FindPayload(DIGEST)}
BY_SCOPE = {
    Permission.WORK: {*WRITES, *READS},
    Permission.START: {*WRITES},
    Permission.OPERATE: {*WRITES},
    Permission.READ: {*READS},
    Permission.DEVELOP: set[str](),
    Permission.ADMIN: set[str](),
}
"""What a key may that is narrowed to one permission."""


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[World]:
    """A server as it is run, with stored content in the namespace `default`."""
    await store_keys.create_namespace(dsn, "other", by="test")
    anywhere = Address("127.0.0.1", 0)
    server = ServerProcess(ServerSettings(dsn=dsn, http=anywhere, grpc=anywhere, drain_s=1.0))
    await server.start()
    try:
        keys = server.server.api.ports.keys
        assert isinstance(keys, Keys)
        found = World(server._app, str(server.grpc), keys, bytes(16))
        for role in Role:
            found.own[role] = await found.key(role, "default")
            found.foreign[role] = await found.key(role, "other")
        async with grpc.aio.insecure_channel(found.grpc_address) as channel:
            assert await asked(channel, found.own[Role.WORKER], "payload.put") == ""
        yield found
    finally:
        await server.stop()


async def asked(channel: grpc.aio.Channel, key: str, name: str) -> str:
    """The error code of one act inside a session; alone it must be refused or answered in the same way."""
    request = {**WRITES, **READS}[name]
    inner = await in_session(channel, key, name, acts.encode(request))
    alone = await call(channel, f"{acts.SERVICE}/Call", key, acts.encode_call(ACTS[name], request))
    assert (alone is grpc.StatusCode.PERMISSION_DENIED) == (inner == "forbidden"), f"{name}: {alone}, {inner}"
    assert (alone is grpc.StatusCode.OK) == (inner == ""), f"{name}: {alone}, {inner}"
    return inner


ACTS = {act.name: act for act in payloads.ACTS}


async def downloaded(world: World, key: str | None) -> tuple[int, bytes]:
    answer = await ask(world.app, "GET", f"{API}/payloads/{DIGEST.hex()}", key, None, {})
    return answer.status, answer.body


async def test_content_is_stored_and_read_by_exactly_these_roles(world: World) -> None:
    assert set(ACTS) == {*WRITES, *READS}
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        for role in Role:
            for name in ACTS:
                granted = role in (WRITERS if name in WRITES else READERS)
                code = await asked(channel, world.own[role], name)
                assert code == ("" if granted else "forbidden"), f"{name} as {role.value}: {code}"
            status, body = await downloaded(world, world.own[role])
            assert (status, CONTENT in body) == ((200, True) if role in READERS else (403, False)), role
    assert (await downloaded(world, None))[0] == 401


async def test_a_key_that_is_narrowed_to_one_permission(world: World) -> None:
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        for scope, granted in BY_SCOPE.items():
            scopes = frozenset({scope})
            new = NewKey(name="narrow", role=Role.ADMIN, namespace="default", scopes=scopes, created_by="test")
            _, key = await world.keys.create(new)
            codes = {name: await asked(channel, key, name) for name in ACTS}
            assert codes == {name: "" if name in granted else "forbidden" for name in ACTS}, scope
            status, body = await downloaded(world, key)
            assert (status, CONTENT in body) == ((200, True) if "payload.find" in granted else (403, False)), scope
            assert status == 200 or msgspec.json.decode(body)["code"] == "forbidden"


async def test_content_of_another_namespace_cannot_be_read(world: World) -> None:
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:
        for role in READERS:
            for name in READS:
                assert await asked(channel, world.foreign[role], name) == "payload_missing"
            status, body = await downloaded(world, world.foreign[role])
            assert status == 410 and CONTENT not in body
        # What it stores itself is its own, and says nothing about what others have.
        assert await asked(channel, world.foreign[Role.WORKER], "payload.put") == ""
        assert await asked(channel, world.foreign[Role.VIEWER], "payload.get") == ""
