"""User data in the database and in its dump, with and without encryption: with real servers, workers and pg_dump."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import secrets
import subprocess
import sys
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

from perdure import Approval, Client, Debounce, Perdure, Signal
from perdure.errors import Stuck, Unavailable
from perdure.store import claims
from perdure.store.sealing.codec import key_of
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

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
SENDERS, STEPS = 4, 3
ROTATIONS = int(os.environ.get("PERDURE_KEY_ROTATIONS", "2"))
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


def perdure_keys(*arguments: str) -> str:
    """`perdure keys`, as an operator runs it. PERDURE_PAYLOAD_KEYS says where the master keys are."""
    command = [sys.executable, "-c", "from perdure.cli.main import main; main()", "keys", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Load:
    """Runs that are started one after the other by several senders, and must all succeed."""

    def __init__(self, client: Client) -> None:
        self._client, self._over = client, asyncio.Event()
        self._tasks = [asyncio.create_task(self._send(n)) for n in range(SENDERS)]
        self.succeeded = 0

    async def _send(self, sender: int) -> None:
        for n in itertools.count():
            if self._over.is_set():
                return
            text = f"load {sender} {n}"
            key = f"{sender}-{n}"
            while True:
                try:
                    run = await self._client.start(
                        work.canary_steps.options(key=key, on_conflict="attach"), text, STEPS
                    )
                    assert await run.result("60s") == text
                    break
                except Unavailable:  # a server was killed; the key makes a repetition the same run
                    await asyncio.wait([asyncio.create_task(self._over.wait())], timeout=0.2)
            self.succeeded += 1

    async def more(self, runs: int) -> None:
        """Until so many more have succeeded."""
        wanted = self.succeeded + runs
        await until(lambda: self.succeeded >= wanted or any(t.done() for t in self._tasks), "the load goes on", 60)
        for task in self._tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)


async def _sealed_with(dsn: str) -> set[int]:
    """Data keys under which rows of the history are."""
    async with connected(dsn) as c:
        found = await c.fetch("select distinct body from perdure.history")
    return {key_of(r["body"]) for r in found}


async def test_keys_are_rotated_under_load(
    dsn: str, tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data keys and master keys are replaced while runs go on, and servers are killed meanwhile: no run fails, and in the end the first
    master key is not needed."""
    monkeypatch.setenv("PERDURE_DSN", dsn)
    async with fleet_of(tmp_path / "fleet", dsn, monkeypatch, keys=key_file, servers=2) as (fleet, client, _):
        load = Load(client)
        await load.more(SENDERS)
        first = lines_of(key_file)[0]
        for number in range(2, ROTATIONS + 2):
            assert f"data key {number} " in await asyncio.to_thread(perdure_keys, "rotate")
            await until(lambda n=number: _uses(dsn, n), "engines seal with the new key", 30)
            await load.more(SENDERS)
        fleet.engines[0].kill()
        second = new_key()
        write_keys(key_file, second, first)
        rewrapping = asyncio.create_task(asyncio.to_thread(perdure_keys, "rewrap"))
        again = fleet.server(0)
        assert f"rewrapped {ROTATIONS + 1} data keys" in await rewrapping
        write_keys(key_file, second)
        await until(lambda: fleet.is_up(again, "ready"), "the killed server is back without the first master key", 60)
        await asyncio.to_thread(perdure_keys, "rotate")
        await until(lambda: _uses(dsn, ROTATIONS + 2), "engines seal with the last key", 30)
        fleet.engines[1].kill()
        await load.more(2 * SENDERS)
        await load.end()
        print(f"{load.succeeded} runs succeeded; history under data keys {sorted(await _sealed_with(dsn))}")
        async with connected(dsn) as c:
            assert await c.fetchval("select count(*) from perdure.run where status <> 'success'") == 0
            assert await c.fetchval("select count(*) from perdure.run_queue where stuck is not null") == 0
        assert await _sealed_with(dsn) == set(range(1, ROTATIONS + 3))
        listed = await asyncio.to_thread(perdure_keys, "list")
        assert listed.count("\n") == ROTATIONS + 2 and "encrypts new data" in listed
        await until(lambda: _at_rest(dsn), "nothing is active", 30)
        assert not violated(await asyncio.to_thread(fleet.verify, at_rest=False))


async def _uses(dsn: str, key_id: int) -> bool:
    return key_id in await _sealed_with(dsn)


async def _at_rest(dsn: str) -> bool:
    async with connected(dsn) as c:
        return not await c.fetchval("select count(*) from perdure.run_queue")


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


@asynccontextmanager
async def without_first_key(dsn: str, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A program whose master key does not open the data key of a run that it has to go on with. Yields it, the run, and the keys to put
    into the file so that it can."""
    monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", f"file:{key_file}")
    monkeypatch.setenv("PERDURE_DSN", dsn)
    first, second = lines_of(key_file)[0], new_key()
    async with Perdure(dsn, queues=["default"]) as client:
        run = await client.start(work.canary_either, "asked")
        await until(lambda: _has(dsn, "task_queue", "name = 'canary_queued'"), "the run waits")
    write_keys(key_file, second, first)
    await asyncio.to_thread(perdure_keys, "rotate")  # the newest data key is wrapped by the second master key
    write_keys(key_file, second)
    async with Perdure(dsn, queues=["default", "canary-nobody"]) as client:
        yield client, await client.get(run.id), (second, first)
    async with connected(dsn) as c:
        assert await c.fetchval("select count(*) from perdure.run where status <> 'success'") == 0


async def test_a_run_whose_key_is_missing_is_stuck_and_goes_on_when_it_is_back(
    dsn: str, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with without_first_key(dsn, key_file, monkeypatch) as (client, run, keys):
        await client.signal(work.heard, run.id, "said")
        with pytest.raises(Stuck, match=r"data key 1, which cannot be used here: .* Put the line of that key back"):
            await run.result("60s")
        write_keys(key_file, *keys)
        await until(lambda: _resumed(client), "the run is resumed", 60)
        assert await run.result("60s") in ("said", "ran")


async def test_a_task_whose_key_is_missing_waits_for_it(
    dsn: str, key_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "KEY_WAIT_S", 1.0)
    async with without_first_key(dsn, key_file, monkeypatch) as (_, run, keys):
        await until(
            lambda: "waits 1 s for its key: this task input is encrypted" in caplog.text, "the task is put back"
        )
        write_keys(key_file, *keys)
        assert await run.result("60s") == "ran"


async def _resumed(client: Perdure) -> bool:
    """As an operator does it. Refused while the engine does not yet look for the key again."""
    return (await (await client.bulk("resume", "stuck")).wait()).done == 1


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
