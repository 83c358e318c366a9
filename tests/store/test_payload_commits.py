"""Commits that refer to stored content while upkeep deletes content: a run whose history has a reference can read it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from perdure.core import events as ev
from perdure.core.errors import PayloadMissing
from perdure.core.payload_port import AnnouncedPayload
from perdure.core.payloads import Reference, digest_of, whole
from perdure.engine.commits.rows import Batch
from perdure.engine.commits.store import Poison
from perdure.engine.payloads import NamespacePayloads, Payloads
from perdure.engine.settings import EngineSettings
from perdure.payloads.content import BytesContent
from perdure.store.payloads import PostgresPayloads
from perdure.store.postgres import PostgresStore
from perdure.wire.codec import encode_events
from tests.fakes.rows import NS, start_row
from tests.fakes.waiting import busy
from tests.store.test_sessions import new_run

SETTINGS = EngineSettings(payload_grace_s=0.0)
"""Without a grace period: what is unused may be deleted at any moment."""
COMMITTERS, SWEEPERS, CONTENTS, COMMITS = 4, 3, 5, 60
COMMITS_REFUSED_MAX = 2_000
"""Tries after which the sweeps were never too late."""


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    one = PostgresStore(dsn)
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def deleting(dsn: str) -> AsyncIterator[PostgresPayloads]:
    one = PostgresPayloads(dsn)
    await one.open()
    yield one
    await one.close()


async def stored(payloads: NamespacePayloads, content: bytes) -> Reference:
    made = BytesContent(content)
    return Reference(made.sha256, made.size, await payloads.transfer.store(made, [], "it"))


def start_with(run_id: bytes, *references: Reference) -> Batch:
    """A run whose input refers to content."""
    batch = Batch()
    events = [ev.RunStarted("w", "v", whole(reference)) for reference in references]
    batch.starts.append(start_row(run_id, body=encode_events(list(events))))
    batch.use(run_id, NS, [event.input for event in events])
    return batch


async def test_a_commit_that_refers_to_deleted_content_is_refused(
    store: PostgresStore, deleting: PostgresPayloads
) -> None:
    payloads = Payloads(deleting, SETTINGS)
    kept, gone = await stored(payloads.of(NS), b"kept"), await stored(payloads.of(NS), b"gone")
    await payloads.of(NS).hold([("", kept.sha256)], new_run())
    await payloads.sweep(10)
    session = (await store.register("engine", 60, 0)).id
    refused, taken = new_run(), new_run()
    with pytest.raises(Poison, match=f"payload_missing.*{gone.hex}"):
        await store.commit(session, 1, start_with(refused, kept, gone))
    await store.commit(session, 2, start_with(taken, kept))
    assert await store.existing(NS, [refused, taken]) == {taken}


async def test_a_commit_that_refers_to_an_upload_that_was_cut_short_is_refused(
    store: PostgresStore, deleting: PostgresPayloads
) -> None:
    await Payloads(deleting, SETTINGS).of(NS).announce("", [AnnouncedPayload(digest_of(b"whole"), 5)])
    session = (await store.register("engine", 60, 0)).id
    with pytest.raises(Poison, match="payload_missing"):
        await store.commit(session, 1, start_with(new_run(), Reference(digest_of(b"whole"), 5)))


async def test_a_value_cannot_refer_to_deleted_content(deleting: PostgresPayloads) -> None:
    """Else the next run would keep the value, and not what is in it."""
    payloads = Payloads(deleting, SETTINGS)
    gone = await stored(payloads.of(NS), b"gone")
    await payloads.sweep(10)
    outer = BytesContent(whole(gone))
    with pytest.raises(PayloadMissing, match=gone.hex):
        await payloads.of(NS).transfer.store(outer, [("", gone.sha256)], "it")
    with pytest.raises(PayloadMissing):
        await payloads.of(NS).get(outer.sha256, 0, 10)


async def test_no_run_is_left_with_a_reference_that_cannot_be_read(dsn: str, deleting: PostgresPayloads) -> None:
    """Engines commit references to the same few contents, over connections of their own, while others delete what is unused."""
    payloads, contents = Payloads(deleting, SETTINGS), [f"content {n}".encode() for n in range(CONTENTS)]
    committed: dict[bytes, Reference] = {}
    counts = {"refused": 0, "deleted": 0}
    over = asyncio.Event()

    async def commits(store: PostgresStore, seed: int) -> None:
        chance = random.Random(seed)
        session, number = (await store.register(f"engine {seed}", 600, 0)).id, 0
        done = 0
        while done < COMMITS:
            content = chance.choice(contents)
            reference = Reference(digest_of(content), len(content))
            if chance.random() < 0.8:  # else another engine uploaded it, or it is gone
                await stored(payloads.of(NS), content)
            run_id, number = new_run(), number + 1
            try:
                await store.commit(session, number, start_with(run_id, reference))
            except Poison:
                counts["refused"] += 1
                assert counts["refused"] < COMMITS_REFUSED_MAX
                continue
            assert await payloads.of(NS).transfer.fetch(reference) == content
            committed[run_id] = reference
            done += 1

    async def sweeps(seed: int) -> None:
        """Retention takes the uses of a run now and then, so that its content may go."""
        chance = random.Random(seed)
        while not over.is_set():
            counts["deleted"] += await payloads.sweep(100)
            if committed and chance.random() < 0.3:
                await retention(chance.choice(list(committed)))
            await busy(chance.random() / 200)

    async def retention(run_id: bytes) -> None:
        del committed[run_id]
        async with deleting._pool.take() as c:
            await c.execute("delete from perdure.payload_use where run_id = $1", run_id)

    async with AsyncExitStack() as stack:
        stores = [PostgresStore(dsn) for _ in range(COMMITTERS)]
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        async with asyncio.TaskGroup() as group:
            sweeping = [group.create_task(sweeps(100 + n)) for n in range(SWEEPERS)]
            committing = [group.create_task(commits(store, n)) for n, store in enumerate(stores)]
            await asyncio.gather(*committing)
            over.set()
            await asyncio.gather(*sweeping)
    await payloads.sweep(100)
    assert counts["refused"] and counts["deleted"], f"nothing met here: {counts}"
    for reference in set(committed.values()):
        assert await payloads.of(NS).transfer.fetch(reference) in contents
