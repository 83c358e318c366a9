"""Transfers between accounts in transactional tasks, while workers and servers are killed: each happens once, and every balance is exact."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from harness.fleet import EngineProcess
from harness.servers import Servers
from harness.transfers import transferred

from perdure import Client
from perdure.errors import PerdureError
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
TRANSFERS = int(os.environ.get("PERDURE_TRANSFERS", "120"))
ACCOUNTS = 40
CENTS = 1_000_000
SERVERS = WORKERS = 2
LEASE_S = 2.0
KILL_EVERY = (5, 20)
"""Transfers that end between two kills: a kill hits work that is under way, however slow the machine is."""
STARTED_AT_ONCE = 20
SCHEMA = f"""
create table account (id int primary key, cents int not null);
create table entry (id serial primary key, transfer int not null);
insert into account select n, {CENTS} from generate_series(0, {ACCOUNTS - 1}) n;
"""


@dataclass(frozen=True)
class Transfer:
    number: int
    source: int
    target: int
    cents: int


@pytest.mark.keep
async def test_killed_workers_and_servers_neither_lose_nor_repeat_a_transfer(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED}")
    randomness = random.Random(SEED)
    monkeypatch.setenv("PERDURE_DSN", dsn)  # of the workers: a transactional task has its connection from there
    books: Any = await asyncpg.connect(dsn)
    await books.execute(SCHEMA)
    transfers = [_transfer(n, randomness) for n in range(TRANSFERS)]
    with Servers(tmp_path, dsn, SERVERS, lease_s=LEASE_S) as fleet:
        makers = [
            *(lambda n=n: fleet.server(n) for n in range(SERVERS)),
            *[lambda: fleet.worker(fleet.addresses, slots=3, module="harness.transfers")] * WORKERS,
        ]
        processes: list[EngineProcess] = [makers[n]() for n in range(SERVERS)]
        await until(lambda: all(fleet.is_up(s, "ready") for s in processes), "the servers are up", 60)
        processes += [make() for make in makers[SERVERS:]]
        starting = asyncio.create_task(_start(fleet, transfers))
        kills: Counter[str] = Counter()
        began = time.monotonic()
        while True:
            ended = await _ended(books)
            more = min(ended + randomness.randrange(*KILL_EVERY), TRANSFERS)
            await until(partial(_has_ended, books, more), "transfers go on after a kill", 90)
            if more == TRANSFERS:
                break
            n = randomness.randrange(SERVERS) if kills.total() % 2 else SERVERS + randomness.randrange(WORKERS)
            await asyncio.to_thread(processes[n].kill)
            kills["servers" if n < SERVERS else "workers"] += 1
            processes[n] = makers[n]()
        await starting
        took_s = time.monotonic() - began
        await until(lambda: all(fleet.is_up(s, "ready") for s in processes[:SERVERS]), "the last servers are up", 60)
        await _check(books, fleet, transfers)
    rolled_back = await books.fetchval("select last_value from entry_id_seq") - TRANSFERS
    await books.close()
    print(f"{TRANSFERS} transfers in {took_s:.0f} s, {kills['servers']} servers and {kills['workers']} workers killed")
    print(f"{rolled_back} transactions were cut and done again")
    assert rolled_back > 0, "no kill has hit a transaction: the test has shown nothing"


async def _ended(books: Any) -> int:
    return int(await books.fetchval("select count(*) from perdure.run"))


async def _has_ended(books: Any, number: int) -> bool:
    return await _ended(books) >= number


async def _check(books: Any, fleet: Servers, transfers: list[Transfer]) -> None:
    statuses = Counter(r[0] for r in await books.fetch("select status from perdure.run"))
    assert statuses == {"success": TRANSFERS}
    entries = {r["transfer"]: r["id"] for r in await books.fetch("select id, transfer from entry")}
    assert await books.fetchval("select count(*) from entry") == TRANSFERS, "a transfer happened twice"
    assert set(entries) == {t.number for t in transfers}
    expected = [CENTS] * ACCOUNTS
    for t in transfers:
        expected[t.source] -= t.cents
        expected[t.target] += t.cents
    assert [r[0] for r in await books.fetch("select cents from account order by id")] == expected
    async with Client(fleet.addresses[0]) as client:
        for t in transfers:
            run = await client.get(key=_key(t), workflow=transferred)
            assert await run.result() == entries[t.number], "the result is of another transaction"


def _transfer(number: int, randomness: random.Random) -> Transfer:
    source, target = randomness.sample(range(ACCOUNTS), 2)
    return Transfer(number, source, target, randomness.randrange(1, 1_000))


async def _start(fleet: Servers, transfers: list[Transfer]) -> None:
    """Each under its key, again and again until a server has confirmed it."""
    left = list(transfers)
    turn = 0
    while left:
        turn += 1
        with contextlib.suppress(PerdureError, OSError):
            async with Client(fleet.addresses[turn % SERVERS], call_timeout="5s"):
                while left:
                    part = left[:STARTED_AT_ONCE]
                    await asyncio.gather(*map(_started, part))
                    left = left[len(part) :]


async def _started(t: Transfer) -> None:
    one = transferred.options(key=_key(t), on_conflict="attach")
    await one.start(t.number, t.source, t.target, t.cents)


def _key(t: Transfer) -> str:
    return f"transfer-{t.number}"
