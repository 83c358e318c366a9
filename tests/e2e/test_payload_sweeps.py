"""Upkeep that deletes content at the worst moment: between its upload and the commit that refers to it."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from perdure import EngineSettings, Perdure, Signal, task, workflow
from perdure.core import ids
from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import TaskEndedMessage
from perdure.core.payloads import Reference, digest_of, whole
from perdure.errors import PayloadMissing, Stuck
from perdure.payloads.content import BytesContent
from perdure.payloads.transfer import PayloadTransfer
from perdure.store.verify import verify

LARGE = 300_000
LIMIT = "60s"
go: Signal[int] = Signal("sweeps_go", int)
executed: list[str] = []


@task(name="sweeps.made")
async def made() -> str:
    executed.append("made")
    return "m" * LARGE


@workflow(name="sweeps.result_of_a_task")
async def result_of_a_task(given: str) -> int:
    return len(given) + len(await made())


@workflow(name="sweeps.result_of_the_run")
async def result_of_the_run(given: str) -> str:
    return given * LARGE


@workflow(name="sweeps.waits")
async def waits() -> int:
    return await go.next()


class SweptOnce:
    """Deletes what is unused after the first upload of `what`."""

    def __init__(self, what: str) -> None:
        self._what, self._stored, self.swept = what, PayloadTransfer.store, False

    def plant(self, client: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
        async def store(transfer: PayloadTransfer, content: Any, holds: Any, what: str) -> str:
            place = await self._stored(transfer, content, holds, what)
            if self._what in what and not self.swept:
                self.swept = True
                assert await client.engine.payloads.sweep(100)
            return place

        monkeypatch.setattr(PayloadTransfer, "store", store)


@pytest.fixture(autouse=True)
def nothing_executed() -> None:
    executed.clear()


@pytest.mark.parametrize(
    ("code", "what", "times"),
    [(result_of_a_task, "result of sweeps.made", 2), (result_of_the_run, "result of the run", 0)],
)
async def test_a_run_whose_value_was_deleted_before_it_was_recorded_makes_it_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch, code: Any, what: str, times: int
) -> None:
    async with Perdure(dsn, settings=EngineSettings(payload_grace_s=0.0)) as client:
        swept = SweptOnce(what)
        swept.plant(client, monkeypatch)
        handle = await client.start(code, "g")
        with pytest.raises(Stuck, match="payload_missing"):
            await handle.result(LIMIT)
        assert swept.swept
        await handle.resume()
        result = await handle.result(LIMIT)
    assert result == (LARGE + 1 if code is result_of_a_task else "g" * LARGE)
    assert len(executed) == times
    assert not [t.name for t in await verify(dsn) if t.violations]


async def test_a_start_whose_input_was_deleted_before_it_was_recorded_is_refused(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Perdure(dsn, settings=EngineSettings(payload_grace_s=0.0)) as client:
        SweptOnce("input of sweeps.result_of_a_task").plant(client, monkeypatch)
        with pytest.raises(PayloadMissing):
            await client.start(result_of_a_task, "g" * LARGE)
        handle = await client.start(result_of_a_task, "g" * LARGE)
        assert await handle.result(LIMIT) == 2 * LARGE


async def test_the_result_of_an_orphaned_attempt_is_kept_for_its_run(dsn: str) -> None:
    """It is a message until the run is taken up, which may be long after the grace period."""
    async with Perdure(dsn, settings=EngineSettings(payload_grace_s=0.0)) as client:
        handle = await client.start(waits)
        content, engine = BytesContent(b"c" * LARGE), client.engine
        await engine.payloads.of(engine.ns).transfer.store(content, [], "it")
        value = whole(Reference(digest_of(content.data), content.size))
        ended = TaskEndedMessage(7, TaskStatus.SUCCESS, value, None, 1, 0, 0, 0, 0)
        await engine.lost_workers.orphaned_ended(ids.parse(handle.id), engine.ns, ended)
        await engine.payloads.sweep(100)
        connection = await asyncpg.connect(dsn)
        uses = await connection.fetch("select run_id::text, sha256 from perdure.payload_use")
        await connection.close()
        assert [tuple(row) for row in uses] == [(handle.id, content.sha256)]
        await go.send(handle.id, 1)
        assert await handle.result(LIMIT) == 1
