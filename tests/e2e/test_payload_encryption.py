"""User data in the database and in its dump, with and without encryption: with real servers, workers and pg_dump."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from harness import canary_work as work
from harness.canary_work import at
from harness.fleet import violated
from harness.servers import Servers

from perdure import Approval, Client, Debounce, Signal
from tests.fakes.waiting import until

LEASE_S = 4.0
KINDS = [
    "input",
    "child",
    "log",
    "result",
    "large",
    "task_error",
    "attempt_error",
    "task_input",
    "queued_input",
    "details",
    "state",
    "late_state",
    "signal",
    "late_signal",
    "promise",
    "form",
    "title",
    "comment",
    "decided_form",
    "answer",
    "update",
    "update_reply",
    "event",
    "schedule",
    "deferred",
    "bulk",
    "failing_input",
    "flow",
]
"""Every kind of user data: one canary each."""
PG_DUMP = "pg_dump"
heard_late: Signal[str] = Signal("canary_heard_late", str)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return write_keys(tmp_path / "master.keys", new_key())


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


def write_keys(path: Path, *keys: str) -> Path:
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_text("# the first wraps\n" + "\n".join(keys) + "\n")
    return draft.rename(path)


@asynccontextmanager
async def fleet_of(
    directory: Path, dsn: str, monkeypatch: pytest.MonkeyPatch, *, keys: Path | None, servers: int = 1, module: str = ""
) -> AsyncIterator[tuple[Servers, Client, httpx2.AsyncClient]]:
    monkeypatch.setenv("PERDURE_NOTIFICATIONS", "off")
    if keys is not None:
        monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", f"file:{keys}")
    with Servers(directory, dsn, servers, lease_s=LEASE_S) as fleet:
        up = [fleet.server(n) for n in range(servers)]
        await until(lambda: all(fleet.is_up(s, "ready") for s in up), "the servers are up", 60)
        one = fleet.worker(fleet.addresses, module=module or "harness.canary_work", queue="default")
        await until(lambda: fleet.is_up(one, "connected"), "the worker is up", 60)
        url = f"http://127.0.0.1:{fleet.ports[0][0]}/api/v1"
        async with Client(",".join(fleet.addresses)) as client, httpx2.AsyncClient(base_url=url, timeout=30) as rest:
            try:
                yield fleet, client, rest
            except BaseException:
                print(fleet.errors())
                raise


async def leave_canaries(client: Client, rest: httpx2.AsyncClient, dsn: str, seed: str) -> dict[str, Any]:
    """User data of all KINDS, some of it on its way and some where it stays."""
    async with connected(dsn) as c:
        await c.execute(
            "insert into perdure.notification_rule (ns, name, workflows, kinds, target, address, created_by) "
            "values (1, 'canary', '{*}', '{run.failed,approval.asked}', 'webhook', 'https://127.0.0.1:9/', 'test')"
        )
    run = await client.start(work.canary_waiting, seed, at("input", seed))
    failing = await client.start(work.canary_failing, seed, at("failing_input", seed))
    await client.signal(work.heard, run.id, at("signal", seed))
    await client.resolve(work.told, run.id, at("promise", seed))
    await until(lambda: _has(dsn, "promise", "name = 'canary_decided'"), "the approval is asked for")
    await client.approve(work.decided, run.id, work.Terms(at("answer", seed)), by="ada", comment="")
    assert await client.update(work.change, run.id, at("update", seed)) == at("update_reply", seed)
    await until(
        lambda: _has(dsn, "promise", "name = 'canary.news' or event = 'canary.news'"), "the event is waited for"
    )
    await client.emit(work.news, at("event", seed))
    await until(lambda: _has(dsn, "promise", "name = 'canary_never'"), "the run has come to its last wait")
    one_of_two = Approval("canary_open", work.Terms)
    assert not await client.approve(one_of_two, run.id, work.Terms("x"), by="ada", comment=at("comment", seed))
    document = {
        "flow": "canary_flow",
        "input": {"text": {"type": "string"}},
        "tasks": {"wait": {"wait": {"signal": "go"}}},
    }
    await client.deploy(document)
    flow = await rest.post("/workflows/canary_flow/runs", json={"input": {"text": at("flow", seed)}})
    assert flow.status_code == 201, flow.text
    spec = {"workflow": "canary_scheduled", "spec": {"cron": "0 0 1 1 *"}, "input": {"text": at("schedule", seed)}}
    made = await rest.put("/schedules/canary", json=spec)
    assert made.status_code in (200, 201), made.text
    await client.start(work.canary_deferred.options(debounce=Debounce("1h", key="k")), seed, at("deferred", seed))
    # A paused run keeps its messages in the inbox.
    held = await client.start(work.canary_waiting.options(delay="1h"), "other", "other")
    assert (await rest.post(f"/runs/{held.id}/pause", json={"reason": "to look at it"})).status_code in (200, 202)
    await heard_late.send(held.id, at("late_signal", seed))
    job = await client.bulk("signal", "workflow = canary_waiting", signal="canary_bulk", payload=at("bulk", seed))
    await job.wait()
    await until(lambda: _has(dsn, "run", "workflow = 'canary_failing'"), "the failing run has failed")
    await until(lambda: _has(dsn, "task_queue", "details is not null"), "the heartbeat is written")
    await until(lambda: _has(dsn, "task_queue", "name = 'canary_queued'"), "the task waits in the queue")
    await until(lambda: _has(dsn, "task_attempt", "name = 'canary_retried'"), "an attempt has failed")
    await until(lambda: _has(dsn, "task_log", "true"), "the output is written")
    return {"run": run.id, "failing": failing.id, "held": held.id, "flow": flow.json()["id"]}


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def _has(dsn: str, table: str, condition: str) -> bool:
    async with connected(dsn) as c:
        return bool(await c.fetchval(f"select exists(select from perdure.{table} where {condition})"))


def dumped(dsn: str, *options: str) -> bytes:
    return subprocess.run([PG_DUMP, *options, dsn], capture_output=True, check=True, timeout=120).stdout


def spellings(canary: str) -> Iterator[bytes]:
    """The text itself, and what it looks like in hexadecimal and in base64, wherever in a value it begins."""
    text = canary.encode()
    yield text
    yield text.hex().encode()
    yield text.hex().upper().encode()
    for offset in range(3):
        inner = text[(3 - offset) % 3 :]
        inner = inner[: len(inner) // 3 * 3]
        yield base64.b64encode(inner)
        yield base64.urlsafe_b64encode(inner)


def found_in(dump: bytes, seed: str) -> set[str]:
    return {kind for kind in KINDS if any(s in dump for s in spellings(at(kind, seed)))}


@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_dump_has_no_user_data_when_it_is_encrypted(
    dsn: str, tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    seed = secrets.token_hex(8)
    keys = key_file if encrypted else None
    async with fleet_of(tmp_path / "fleet", dsn, monkeypatch, keys=keys) as (fleet, client, rest):
        ids = await leave_canaries(client, rest, dsn, seed)
        dumps = [
            await asyncio.to_thread(dumped, dsn, *options)
            for options in ((), ("--inserts",), ("--column-inserts", "--data-only"))
        ]
        for dump in dumps:
            assert found_in(dump, seed) == (set() if encrypted else set(KINDS))
            assert (b"perdure:sealed:" in dump) == encrypted
        await _reads_back(rest, ids, seed)
        assert not violated(await asyncio.to_thread(fleet.verify, at_rest=False))


async def _reads_back(rest: httpx2.AsyncClient, ids: dict[str, Any], seed: str) -> None:
    """What the API shows is the data itself."""

    async def text(path: str) -> str:
        answer = await rest.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.text

    run = f"/runs/{ids['run']}"
    history = await text(f"{run}/history?limit=200")
    for kind in (
        "input",
        "child",
        "result",
        "task_input",
        "state",
        "signal",
        "promise",
        "answer",
        "update",
        "update_reply",
        "event",
        "title",
        "form",
    ):
        assert at(kind, seed) in history, kind
    assert at("log", seed) in await text(f"{run}/logs")
    assert at("late_state", seed) in await text(f"{run}/state")
    tasks = await text(f"{run}/tasks")
    assert at("attempt_error", seed) in tasks and at("details", seed) in tasks
    assert at("task_error", seed) in await text(f"/runs/{ids['failing']}")
    assert at("task_error", seed) in await text("/runs?status=failed")
    assert at("task_error", seed) in await text("/dead-letters")
    assert at("attempt_error", seed) in await text(f"{run}/attempts")
    approvals = await text("/approvals")
    assert at("title", seed) in approvals and at("form", seed) in approvals and at("comment", seed) in approvals
    assert at("schedule", seed) in await text("/schedules/canary")
    assert at("event", seed) in await text("/events")
    notifications = await text("/notifications")
    assert at("task_error", seed) in notifications and at("title", seed) in notifications
