"""What many starts need at the same moment is read once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.core.errors import Unavailable
from perdure.core.limits import VERSION_TRUST_US
from perdure.core.versions import VersionChoice
from perdure.engine.ports import PublishedVersion
from perdure.engine.runs.flow_definitions import REFRESH_US, Flows
from perdure.engine.shared_reads import SharedReads
from tests.fakes.waiting import turns


class Database:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def published(self, ns: int, workflow: str, version: str) -> PublishedVersion:
        await self._answer(f"parameters of {workflow}")
        return PublishedVersion()

    async def task_options(self, ns: int) -> dict[str, bytes]:
        await self._answer("task options")
        return {}

    async def current_versions(self, ns: int, names: list[str]) -> dict[str, VersionChoice]:
        await self._answer("versions")
        return dict.fromkeys(names, VersionChoice("1"))

    async def _answer(self, what: str) -> None:
        self.asked.append(what)
        await turns(5)


async def test_a_thousand_starts_read_what_a_workflow_takes_once() -> None:
    database: Any = Database()
    flows = Flows(database, lambda: 0)
    await asyncio.gather(*(flows.find_input((1, f"w{n % 2}", "1")) for n in range(1_000)))
    assert sorted(database.asked) == ["parameters of w0", "parameters of w1"]


async def test_a_current_version_that_has_become_old_is_read_once_and_one_that_was_moved_again() -> None:
    database: Any = Database()
    now_us = 0
    flows = Flows(database, lambda: now_us)
    assert await flows.pin(1, "w") == "1"
    now_us = 10_000_000
    assert await asyncio.gather(*(flows.pin(1, "w") for _ in range(1_000))) == ["1"] * 1_000
    assert database.asked == ["versions"] * 2
    now_us = 20_000_000
    before = asyncio.ensure_future(flows.pin(1, "w"))
    await turns()
    flows.forget(1, "w")
    await flows.pin(1, "w")
    await before
    assert database.asked == ["versions"] * 4, "an answer from before the move is not shared"


async def test_a_version_that_is_asked_for_is_read_again_before_it_expires_and_nothing_waits_for_it() -> None:
    database: Any = Database()
    now_us = 0
    flows = Flows(database, lambda: now_us)
    await flows.pin(1, "w")
    now_us = REFRESH_US - 1
    assert flows.knows(1, "w")
    await turns(10)
    assert database.asked == ["versions"]
    now_us = REFRESH_US
    assert all(flows.knows(1, "w") for _ in range(1_000))
    await turns(10)
    assert database.asked == ["versions"] * 2
    now_us = VERSION_TRUST_US + REFRESH_US - 1
    assert flows.knows(1, "w"), "it was read half of the time ago"


async def test_a_version_that_was_read_before_it_was_moved_is_not_trusted() -> None:
    database: Any = Database()
    flows = Flows(database, lambda: 10 * VERSION_TRUST_US)
    reading = asyncio.ensure_future(flows.find(1, ["w"]))
    await turns()
    flows.forget(1, "w")
    await reading
    assert flows.choice(1, "w") is not None, "the one who waits for it has an answer"
    assert not flows.knows(1, "w")


async def test_one_who_waits_no_more_leaves_the_others_alone_and_an_error_is_everybodys() -> None:
    once, asked = SharedReads(), 0

    async def read() -> None:
        nonlocal asked
        asked += 1
        await turns(5)
        raise Unavailable("the database is away")

    first, second = (asyncio.ensure_future(once.ask("it", read)) for _ in range(2))
    await turns()
    first.cancel()
    with pytest.raises(Unavailable):
        await second
    with pytest.raises(Unavailable):
        await once.ask("it", read)
    assert asked == 2, "an error is not kept"
