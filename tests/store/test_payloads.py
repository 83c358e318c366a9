"""The payload store in PostgreSQL: uploads, reads, and the deletion of what nothing uses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.core.errors import InvalidInput, PayloadCorrupt, PayloadMissing, PayloadTooLarge, Unavailable
from perdure.core.limits import PAYLOAD_CHUNK_BYTES
from perdure.core.payload_port import AnnouncedPayload
from perdure.core.payloads import Reference, digest_of, opened, whole
from perdure.engine.payloads import NamespacePayloads, Payloads
from perdure.engine.settings import EngineSettings
from perdure.payloads.content import BytesContent
from perdure.store import payloads as store_payloads
from perdure.store.payloads import PostgresPayloads
from tests.fakes.waiting import until

RUN = bytes(15) + b"\x01"
SETTINGS = EngineSettings(payload_grace_s=0.0)
"""Without a grace period: what is unused may be deleted at once."""


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresPayloads]:
    store = PostgresPayloads(dsn)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def payloads(store: PostgresPayloads) -> NamespacePayloads:
    return Payloads(store, SETTINGS).of(1)


async def stored(payloads: NamespacePayloads, content: bytes) -> Reference:
    made = BytesContent(content)
    return Reference(made.sha256, made.size, await payloads.transfer.store(made, [], "it"))


@pytest.mark.parametrize("size", [0, 1, PAYLOAD_CHUNK_BYTES, PAYLOAD_CHUNK_BYTES + 1, 3 * PAYLOAD_CHUNK_BYTES])
async def test_content_is_read_as_it_was_written(payloads: NamespacePayloads, size: int) -> None:
    content = os.urandom(size)
    reference = await stored(payloads, content)
    assert await payloads.transfer.fetch(reference) == content
    part = [p async for p in payloads.transfer.read(reference, size // 2, 10)]
    assert b"".join(part) == content[size // 2 : size // 2 + 10]


async def test_the_same_content_is_stored_once_and_two_uploads_at_once_both_work(
    payloads: NamespacePayloads, store: PostgresPayloads
) -> None:
    content = os.urandom(2 * PAYLOAD_CHUNK_BYTES + 5)
    found = await asyncio.gather(*(stored(payloads, content) for _ in range(4)))
    assert len({r.sha256 for r in found}) == 1
    async with store._pool.take() as c:
        assert await c.fetchval("select count(*) from perdure.payload") == 1
    assert await payloads.transfer.fetch(found[0]) == content


async def test_content_of_another_namespace_is_not_there(store: PostgresPayloads, payloads: NamespacePayloads) -> None:
    reference = await stored(payloads, b"secret")
    with pytest.raises(PayloadMissing):
        await Payloads(store, SETTINGS).of(2).transfer.fetch(reference)


async def test_wrong_content_is_refused_and_can_be_uploaded_again(payloads: NamespacePayloads) -> None:
    content = os.urandom(PAYLOAD_CHUNK_BYTES + 1)
    digest = digest_of(content)
    with pytest.raises(PayloadCorrupt):
        await payloads.put(digest_of(b"other"), 5, 0, b"wrong", [])
    await payloads.announce("", [AnnouncedPayload(digest, len(content))])
    await payloads.put(digest, len(content), 0, bytes(PAYLOAD_CHUNK_BYTES), [])
    with pytest.raises(PayloadCorrupt):
        await payloads.put(digest, len(content), PAYLOAD_CHUNK_BYTES, b"x", [])
    assert await payloads.transfer.fetch(await stored(payloads, content)) == content


async def test_requests_that_do_not_fit_are_refused(payloads: NamespacePayloads) -> None:
    with pytest.raises(InvalidInput):
        await payloads.put(digest_of(b""), 10, 3, b"x", [])
    with pytest.raises(InvalidInput):
        await payloads.get(b"short", 0, 1)
    with pytest.raises(PayloadTooLarge, match="PAYLOAD_POSTGRES_BYTES_MAX"):
        await payloads.announce("", [AnnouncedPayload(digest_of(b""), 1 << 40)])


async def test_what_nothing_uses_is_deleted_and_what_a_run_uses_stays(
    store: PostgresPayloads, payloads: NamespacePayloads
) -> None:
    used, unused = await stored(payloads, b"used"), await stored(payloads, b"unused")
    await payloads.hold([("", used.sha256)], RUN)
    assert await Payloads(store, SETTINGS).sweep(100) == 2
    assert await payloads.transfer.fetch(used) == b"used"
    with pytest.raises(PayloadMissing):
        await payloads.transfer.fetch(unused)
    with pytest.raises(PayloadMissing):
        await payloads.hold([("", unused.sha256)])


async def test_a_stored_value_keeps_what_it_refers_to(store: PostgresPayloads, payloads: NamespacePayloads) -> None:
    inner = await stored(payloads, b"inner" * 30_000)
    outer = await payloads.transfer.offload(whole(inner) + b"")
    value = BytesContent(whole(inner))
    folder = await payloads.transfer.store(value, [("", inner.sha256)], "it")
    await payloads.hold([(folder, value.sha256)], RUN)
    for _ in range(3):
        await Payloads(store, SETTINGS).sweep(100)
    assert opened(outer).references == [inner]
    assert await payloads.transfer.resolve(whole(Reference(value.sha256, value.size))) == b"inner" * 30_000


async def test_an_announcement_puts_deletion_off(store: PostgresPayloads, payloads: NamespacePayloads) -> None:
    reference = await stored(payloads, b"again")
    await stored(payloads, b"due")
    patient = Payloads(store, EngineSettings(payload_grace_s=3600)).of(1)
    await patient.announce("", [AnnouncedPayload(reference.sha256, reference.size)])
    assert await Payloads(store, SETTINGS).sweep(100) == 1
    assert await payloads.transfer.fetch(reference) == b"again"


async def test_deletion_and_new_uses_at_once_lose_nothing(store: PostgresPayloads, payloads: NamespacePayloads) -> None:
    """A hold either comes before the deletion, and the content stays, or after it, and is refused."""
    contents = [os.urandom(20) for _ in range(100)]
    references = [await stored(payloads, content) for content in contents]
    sweeps = Payloads(store, SETTINGS)

    async def hold(reference: Reference, n: int) -> bool:
        try:
            await payloads.hold([("", reference.sha256)], bytes(14) + n.to_bytes(2, "big"))
            return True
        except PayloadMissing:
            return False

    held, *_ = await asyncio.gather(
        asyncio.gather(*(hold(r, n) for n, r in enumerate(references))), *(sweeps.sweep(100) for _ in range(4))
    )
    for reference, content, is_held in zip(references, contents, held, strict=True):
        if is_held:
            assert await payloads.transfer.fetch(reference) == content


async def test_an_upload_that_was_cut_short_is_garbage_by_the_same_rule(
    store: PostgresPayloads, payloads: NamespacePayloads
) -> None:
    content = os.urandom(2 * PAYLOAD_CHUNK_BYTES)
    await payloads.announce("", [AnnouncedPayload(digest_of(content), len(content))])
    await payloads.put(digest_of(content), len(content), 0, content[:PAYLOAD_CHUNK_BYTES], [])
    with pytest.raises(PayloadMissing):  # it is not complete, so it is not there
        await payloads.get(digest_of(content), 0, 10)
    await Payloads(store, SETTINGS).sweep(100)
    assert await store._value("read_payload_chunk", ns=1, sha256=digest_of(content), n=0) is None


async def test_a_deletion_that_comes_late_does_not_take_content_that_was_stored_again(
    dsn: str, store: PostgresPayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an engine that was halted between its look at the database and its request to the object store."""
    owner = Payloads(store, EngineSettings(payload_grace_s=0.0, payload_stores=(f"file://{tmp_path}",)))
    payloads, deletes, halted, goes_on = owner.of(1), owner.objects.delete, asyncio.Event(), asyncio.Event()

    async def late(*given: Any) -> None:
        halted.set()
        await goes_on.wait()
        await deletes(*given)

    monkeypatch.setattr(owner.objects, "delete", late)
    await stored(payloads, b"again")
    sweep = asyncio.create_task(owner.sweep(100))
    await halted.wait()
    connection = await asyncpg.connect(dsn)  # the database does not wait for a halted engine
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and state like 'idle in%'"
    )
    await connection.close()
    again = await stored(payloads, b"again")
    await payloads.hold([(again.store, again.sha256)], RUN)
    goes_on.set()
    await asyncio.gather(sweep, return_exceptions=True)
    assert await payloads.transfer.fetch(again) == b"again"


async def test_what_a_crash_left_in_an_object_store_is_deleted_later(
    store: PostgresPayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Payloads(store, EngineSettings(payload_grace_s=0.0, payload_stores=(f"file://{tmp_path}",)))
    payloads, deletes = owner.of(1), owner.objects.delete

    async def fails(*given: Any) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(store_payloads, "DELETE_AGAIN_S", 0.0)
    first = await stored(payloads, b"once")
    monkeypatch.setattr(owner.objects, "delete", fails)
    with pytest.raises(Unavailable):
        await owner.sweep(100)
    with pytest.raises(PayloadMissing):
        await payloads.hold([(first.store, first.sha256)])
    again = await stored(payloads, b"once")
    await payloads.hold([(again.store, again.sha256)], RUN)
    monkeypatch.setattr(owner.objects, "delete", deletes)
    await owner.sweep(100)
    assert await payloads.transfer.fetch(again) == b"once"
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 1


async def test_the_same_content_is_once_in_an_object_store(store: PostgresPayloads, tmp_path: Path) -> None:
    owner = Payloads(store, EngineSettings(payload_stores=(f"file://{tmp_path}",)))
    found = [await stored(owner.of(ns), b"the same") for ns in (1, 1, 2)]
    assert len(set(found)) == 2
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 2


async def test_the_second_of_two_announcements_at_once_has_the_place_of_the_first(store: PostgresPayloads) -> None:
    items = [AnnouncedPayload(digest_of(b"the same"), 8)]
    async with store._pool.take() as c:
        async with c.transaction():
            first = await store._announce(c, 1, "file:///x/ns-1", items, 60.0)
            second = asyncio.create_task(store.announce(1, "file:///x/ns-1", items, 60.0))
            waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            await until(lambda: _or_done(c.fetchval(waits), second))
        assert await second == first


async def _or_done(waits: Awaitable[int], task: asyncio.Task[Any]) -> bool:
    return bool(await waits) or task.done()
