"""Short forms of tests/executors/load.py. Speed is printed, not asserted: the machine is shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Client
from tests.cli.processes import server
from tests.executors.load import agent_of, concurrent, sustained, waited

pytestmark = pytest.mark.usefixtures("processes")


async def test_many_commands_take_little_memory_and_none_is_lost(dsn: str, tmp_path: Path) -> None:
    with server(dsn, tmp_path, "--auth", "open") as running:
        async with Client(running.grpc), agent_of(running, tmp_path, 200) as pid:
            steady = await sustained(dsn, 60, 4)
            print(steady)
            assert steady.tasks == 16 * -(-60 * 4 // 16) or steady.tasks >= 200
            many = await concurrent(pid, 150, tmp_path)
            print(many)
            assert many.agent_mb - many.interpreter_mb < 80


async def test_jobs_that_wait_take_no_slots(dsn: str, tmp_path: Path) -> None:
    with server(dsn, tmp_path, "--auth", "open") as running:
        async with Client(running.grpc):
            found = await waited(running, 1_000, 3)
            print(found)
            assert found.slots_free == found.slots == 10
