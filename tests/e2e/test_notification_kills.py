"""Servers that deliver notifications are killed at random: every fact arrives, under one id, and no id is of anything else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import time
from collections import Counter
from pathlib import Path

import asyncpg
import pytest
from harness.fleet import at_rest
from harness.servers import Servers
from standardwebhooks.webhooks import Webhook

from perdure import Client
from perdure.core.api import notifications as acts
from perdure.core.api.notifications import PutNotificationRule
from perdure.core.application_limits import NOTIFY_AT_ONCE_MAX
from perdure.core.errors import PerdureError
from tests.fakes.receivers import Received, Receiver, http_receiver
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SECONDS = float(os.environ.get("PERDURE_NOTIFICATION_SECONDS", "6"))
LONGEST = 3
"""Times as long, until a kill has hit a delivery."""
SERVERS = 2
LEASE_S = 2.0
KILL_EVERY = (2, 12)
"""Requests from one kill to the next, the last of which has no answer yet."""
KEY = base64.b64encode(bytes(range(32))).decode()
REFUSED_PART = 0.05
"""Of the requests are answered with an error, and come again."""
IN_FLIGHT = 2 * NOTIFY_AT_ONCE_MAX
"""Deliveries that one server has under way, of two rules. A kill repeats at most these."""


async def test_servers_killed_while_they_deliver_lose_no_notification_and_invent_none(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED}")
    randomness = random.Random(SEED)
    for name, value in {
        "PERDURE_SECRET_KEY": KEY,
        "PERDURE_NOTIFY_ALLOW": "127.0.0.1",
        "PERDURE_NOTIFY_TIMEOUT": "1s",
    }.items():
        monkeypatch.setenv(name, value)
    async with http_receiver() as receiver:
        refused: Counter[str] = Counter()

        def answer(got: Received) -> tuple[int, dict[str, str]]:
            if randomness.random() >= REFUSED_PART:
                return 204, {}
            refused[got.headers["webhook-id"]] += 1
            return 500, {}

        receiver.answer, receiver.think_s = answer, 0.2
        with Servers(tmp_path, dsn, SERVERS, lease_s=LEASE_S) as fleet:
            servers = [fleet.server(n) for n in range(SERVERS)]
            await until(lambda: all(fleet.is_up(s, "ready") for s in servers), "the servers are up", 60)
            worker = fleet.worker(fleet.addresses, module="harness.failing")
            await until(lambda: fleet.is_up(worker, "connected"), "the worker is up", 60)
            secrets = await _rules(fleet, receiver)
            over = asyncio.Event()
            starting = asyncio.create_task(_load(fleet, over))
            kills = 0
            began = time.monotonic()

            def repeated() -> int:
                return len(receiver.ids) - len(set(receiver.ids)) - refused.total()

            while (elapsed := time.monotonic() - began) < SECONDS or (repeated() <= 0 and elapsed < LONGEST * SECONDS):
                await receiver.has(len(receiver.requests) + randomness.randrange(*KILL_EVERY), within_s=180)
                n = randomness.randrange(SERVERS)
                await asyncio.to_thread(servers[n].kill)
                kills += 1
                servers[n] = fleet.server(n)
            over.set()
            await starting
            await until(lambda: all(fleet.is_up(s, "ready") for s in servers), "the last servers are up", 60)
            await at_rest(dsn, 120)
            await until(lambda: _none_pending(dsn), "every notification is delivered", 120)
            _check(receiver, secrets, await _facts(dsn))
            hooks = await _check_hooks(dsn)
            ids = Counter(receiver.ids)
            print(
                f"{kills} kills, {len(ids)} notifications, {len(receiver.requests)} requests, "
                f"{refused.total()} refused, {repeated()} repeated after a kill, "
                f"{hooks} hooks"
            )
            assert kills >= 3
            assert len(ids) >= 20
            assert repeated() > 0, "no kill has hit a delivery: the test has shown nothing"
            assert repeated() <= kills * IN_FLIGHT


async def _rules(fleet: Servers, receiver: Receiver) -> dict[str, str]:
    """Path -> secret."""
    found: dict[str, str] = {}
    async with Client(fleet.addresses[0]) as client:
        for name, workflows, kinds in (
            ("failed", ["*"], ["run.failed"]),
            ("ends", ["fails_now"], ["run.failed", "run.succeeded"]),
        ):
            new = PutNotificationRule(
                name=name, workflows=workflows, kinds=kinds, target="webhook", address=receiver.url(f"/{name}")
            )
            made = await client._backend.call(acts.PUT_RULE, new)
            assert made.secret is not None
            found[f"/{name}"] = made.secret
    return found


async def _load(fleet: Servers, over: asyncio.Event) -> None:
    from harness.failing import fails_now, works_now

    n = 0
    while not over.is_set():
        try:
            async with Client(fleet.addresses[n % SERVERS], call_timeout="5s"):
                while not over.is_set():
                    await asyncio.gather(*((fails_now if i % 2 else works_now).start(i) for i in range(n, n + 10)))
                    n += 10
                    await over_within(over, 0.1)
        except (PerdureError, OSError):
            n += 1


async def over_within(over: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), seconds)


async def _none_pending(dsn: str) -> bool:
    c = await asyncpg.connect(dsn)
    try:
        return not await c.fetchval("select count(*) from perdure.notification where status <> 'done'")
    finally:
        await c.close()


async def _facts(dsn: str) -> set[tuple[str, str, str]]:
    """(path, kind, run) that the ends of runs make due."""
    c = await asyncpg.connect(dsn)
    try:
        rows = await c.fetch("select run_id::text as run_id, workflow, status from perdure.run")
    finally:
        await c.close()
    facts = {("/failed", "perdure.run.failed", r["run_id"]) for r in rows if r["status"] == "failed"}
    kinds = {"failed": "perdure.run.failed", "success": "perdure.run.succeeded"}
    return facts | {("/ends", kinds[r["status"]], r["run_id"]) for r in rows if r["workflow"] == "fails_now"}


async def _check_hooks(dsn: str) -> int:
    """Each failed run has started its hook once, and nothing else has."""
    c = await asyncpg.connect(dsn)
    try:
        failed = {r[0] for r in await c.fetch("select run_id::text from perdure.run where workflow = 'fails_now'")}
        keys = [r[0] for r in await c.fetch("select key from perdure.run where workflow = 'after_failure'")]
    finally:
        await c.close()
    assert Counter(key.split(":")[1] for key in keys) == Counter(failed)
    return len(keys)


def _check(receiver: Receiver, secrets: dict[str, str], facts: set[tuple[str, str, str]]) -> None:
    by_id: dict[str, tuple[str, str, str]] = {}
    for got in receiver.requests:
        event = Webhook(secrets[got.path]).verify(got.body.decode(), got.headers)
        fact = (got.path, event["type"], event["subject"])
        assert event["id"] == got.headers["webhook-id"]
        assert by_id.setdefault(event["id"], fact) == fact, "one id stands for two facts"
    assert set(by_id.values()) == facts
    assert len(by_id) == len(facts), "one fact has two ids"
