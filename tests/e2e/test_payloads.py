"""Large values and blobs through real runs: embedded and over gRPC, in the database and in object stores."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import Blob, Client, EngineSettings, Perdure, Promise, Signal, State, Update, task, wf, workflow
from perdure.core.payloads import MARK, references_of
from perdure.errors import PayloadMissing, RunFailed, Stuck
from perdure.sdk.worker.stream import RemoteWorker
from tests.object_stores import ObjectServer, s3_server
from tests.server.remote import server, worker

LIMIT = "30s"
LARGE = 300_000
"""Characters: more than a payload may have inline."""


@task
async def large_text(size: int) -> str:
    return "é" * (size // 2)


@task
def length_of(text: str) -> int:
    return len(text)


@task(process=True)
def doubled(text: str) -> str:
    return text + text


@workflow
async def made_once(size: int) -> int:
    return 2 * len(await large_text(size))


@workflow
async def passes_on(text: str) -> str:
    made = await large_text(LARGE)
    assert await length_of(made) == LARGE // 2
    twice = await doubled(made)
    assert len(twice) == LARGE
    return twice + text


@dataclass
class Report:
    title: str
    pages: list[Blob]
    cover: Blob | None = None


@task
async def render(title: str) -> Report:
    async with Blob.writer(f"{title}.txt") as out:
        for n in range(3):
            out.write(f"{title} {n}\n".encode() * 1000)
    return Report(title, [out.blob, Blob.from_bytes(b"%PDF", name="a.pdf")], Blob.from_bytes(b"", name="empty"))


@task
def read_in_thread(report: Report) -> tuple[str, str, str]:
    first = report.pages[0]
    with first.open() as file:
        file.seek(-4, 2)
        tail = file.read()
    return first.read_text()[:5], report.pages[1].media_type, tail.decode()


@task(process=True)
def copied_in_process(report: Report) -> Blob:
    with Blob.writer("copy.txt") as out:
        out.write(report.pages[0].read_bytes())
    return out.blob


@task
async def digest_on_loop(blob: Blob) -> str:
    return hashlib.sha256(await blob.aread_bytes()).hexdigest()


@workflow
async def reports(title: str) -> dict[str, Any]:
    report = await render(title)
    assert report.pages[0].size > 1000 and report.pages[1].name == "a.pdf"
    seen = await read_in_thread(report)
    copy = await copied_in_process(report)
    assert copy.sha256 == report.pages[0].sha256 == await digest_on_loop(copy)
    return {"seen": list(seen), "copy": copy, "plain": {"$payload": 0}}


@workflow
async def reads_a_blob(blob: Blob) -> int:
    return len(blob.read_bytes())


note: Signal[str] = Signal("note", str)
answer: Promise[str] = Promise("answer", str)
kept: State[str] = State("kept", "", str)
change: Update[str, str] = Update("change", str, str)


@workflow(name="payload_child")
async def child(text: str) -> str:
    return text.upper()


@workflow
async def receives(rounds: int) -> int:
    total = len(await note.next()) + len(await answer.wait())
    async for asked in change:
        asked.reply(asked.value * 2)
        break
    kept.set("k" * LARGE)
    total += len(await child("c" * LARGE))
    total += len(await wf.run("made", lambda: "o" * LARGE))
    if rounds:
        wf.continue_as_new(rounds - 1)
    return total


@asynccontextmanager
async def embedded(dsn: str, stores: str, **options: Any) -> AsyncIterator[Any]:
    client = Perdure(dsn, payloads=stores, **options)
    async with client:
        yield client


@asynccontextmanager
async def remote(dsn: str, stores: str, **options: Any) -> AsyncIterator[Any]:
    settings = EngineSettings(payload_stores=tuple(filter(None, [stores])), **options)
    async with server(dsn, settings=settings) as served, worker(served.address, payloads=stores):
        async with Client(served.address, payloads=stores) as client:
            yield client


@pytest.fixture(params=["embedded", "remote"])
def opened(request: pytest.FixtureRequest) -> Any:
    return {"embedded": embedded, "remote": remote}[request.param]


@pytest.fixture(scope="module")
def s3(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["database", "directory", pytest.param("s3", marks=pytest.mark.starts("processes"))])
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "database":
        return ""
    if request.param == "directory":
        return f"file://{tmp_path}/payloads"
    server: ObjectServer = request.getfixturevalue("s3")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return f"{server.url}/payloads-{time.monotonic_ns()}"


async def counted(dsn: str, query: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


async def test_workflow_code_sees_the_same_value_however_large_it_is(dsn: str, opened: Any, stores: str) -> None:
    async with opened(dsn, stores) as client:
        handle = await client.start(passes_on, "i" * LARGE)
        assert len(await handle.result(LIMIT)) == 2 * LARGE
        history = await handle.history()
        assert all(len(r.event.input) < 1000 for r in history[:1])
        assert len(str(history)) < 20_000, "content is not in the history"
    assert await counted(dsn, "select count(*) from perdure.payload_use") >= 4


async def test_blobs_travel_as_handles_and_are_read_where_they_are_needed(dsn: str, opened: Any, stores: str) -> None:
    async with opened(dsn, stores) as client:
        result = await asyncio.wait_for(client.run(reports, "t"), 30)
        assert result["seen"] == ["t 0\nt", "application/pdf", "t 2\n"]
        assert result["plain"] == {"$payload": 0}
        copy = result["copy"]
        assert isinstance(copy, Blob) and copy.name == "copy.txt" and copy.media_type == "text/plain"
        assert (await copy.aread_text()).startswith("t 0\n")
        assert (
            await counted(dsn, "select count(*) from perdure.payload") == 4 - 1
        )  # the copy has the content of its original


async def test_messages_states_children_and_side_effects_may_be_large(dsn: str, opened: Any, stores: str) -> None:
    async with opened(dsn, stores) as client:
        handle = await client.start(receives, 0)
        await note.send(handle.id, "n" * LARGE)
        await answer.resolve(handle.id, "a" * LARGE)
        assert await change.ask(handle.id, "u" * LARGE) == "u" * LARGE * 2
        assert await handle.result(LIMIT) == 4 * LARGE
        assert await kept.read(handle.id) == "k" * LARGE


async def test_a_blob_of_a_client_is_stored_with_the_start(dsn: str, opened: Any, stores: str, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(bytes(range(256)) * 10_000)  # more than one chunk
    async with opened(dsn, stores) as client:
        handle = await client.start(reads_a_blob, Blob.from_path(source))
        with pytest.raises(RunFailed, match="Pass the blob to a task"):
            await handle.result(LIMIT)
        started = (await handle.history())[0].event
        assert [r.size for r in references_of(started.input)] == [source.stat().st_size]


@workflow
async def measured(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("delete from perdure.payload", "payload_missing"),
        ("update perdure.payload_chunk set data = repeat('x', length(data))::bytea", "payload_corrupt"),
    ],
)
async def test_a_run_whose_stored_value_is_gone_or_damaged_is_stuck_and_can_be_resumed(
    dsn: str, damage: str, code: str
) -> None:
    async with server(dsn) as served, Client(served.address) as client:
        handle = await client.start(measured, "w" * LARGE)
        connection = await asyncpg.connect(dsn)
        saved = await connection.fetch("select * from perdure.payload_chunk")
        await connection.execute(damage)
        async with worker(served.address):
            with pytest.raises(Stuck):
                await handle.result(LIMIT)
            assert code in ((await handle.describe()).stuck or "")
            if code == "payload_corrupt":
                await connection.executemany(
                    "update perdure.payload_chunk set data = $2 where sha256 = $1",
                    [(row["sha256"], row["data"]) for row in saved],
                )
                await handle.resume()
                assert await handle.result(LIMIT) == LARGE
        await connection.close()


async def test_a_worker_that_dies_between_upload_and_report_costs_an_attempt_and_no_content(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = asyncio.Event()
    reported = RemoteWorker._reported
    lost: list[RemoteWorker] = []

    def dies(self: RemoteWorker, reports: Any) -> None:
        """The first report that carries a reference is lost with its worker."""
        if not uploaded.is_set() and any(r.value.startswith(MARK) for r in reports):
            uploaded.set()
        elif self not in lost:
            reported(self, reports)

    monkeypatch.setattr(RemoteWorker, "_reported", dies)
    async with server(dsn, grace_s=0.2) as served, Client(served.address) as client:
        async with worker(served.address) as first:
            handle = await client.start(made_once, LARGE)
            await asyncio.wait_for(uploaded.wait(), 30)
            lost.append(first)
        async with worker(served.address):
            assert await handle.result(LIMIT) == LARGE
    assert await counted(dsn, "select count(*) from perdure.payload") == 1


@task
async def never_stored() -> str:
    return "x" * (17 * 1024 * 1024)


@workflow
async def too_large() -> int:
    return len(await never_stored())


async def test_a_value_over_the_limit_of_the_database_fails_its_task(dsn: str) -> None:
    async with embedded(dsn, "") as client:
        with pytest.raises(RunFailed, match="PAYLOAD_POSTGRES_BYTES_MAX"):
            await asyncio.wait_for(client.run(too_large), 30)


async def test_content_goes_with_the_runs_that_use_it(dsn: str, stores: str) -> None:
    """Uses are dropped with a run's partition; without any, and after the grace period, the content is deleted where it is."""
    async with embedded(dsn, stores, settings=EngineSettings(payload_grace_s=0.0)) as client:
        handle = await client.start(measured, "w" * LARGE)
        assert await handle.result(LIMIT) == LARGE
        reference = references_of((await handle.history())[0].event.input)[0]
        await client.engine.payloads.sweep(100)
        assert len(await client._backend.payloads.fetch(reference)) > LARGE, "a run uses it"
        connection = await asyncpg.connect(dsn)
        await connection.execute("delete from perdure.payload_use")
        await connection.close()
        await client.engine.payloads.sweep(100)
        with pytest.raises(PayloadMissing):
            await client._backend.payloads.fetch(reference)
    assert await counted(dsn, "select count(*) from perdure.payload") == 0
