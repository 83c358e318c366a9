"""What workers serve is registered when it is new, and again now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.core.errors import Unavailable
from perdure.core.limits import REGISTER_EVERY_S
from perdure.core.work import ServedCode
from perdure.engine.services import served as module
from perdure.engine.services.served import ServedDefinitions
from tests.fakes.engine_parts import EngineParts, FakeWorker

HEARTBEAT_S = 5


class Database:
    def __init__(self) -> None:
        self.registered: list[str] = []
        self.away = False

    async def register_versions(self, ns: int, code: Sequence[tuple[str, ServedCode]]) -> list[tuple[str, str]]:
        if self.away:
            raise Unavailable("the database is away")
        self.registered += [f"{name} {one.version}" for name, one in code]
        return []


class ServerWorkers(FakeWorker):
    outlives_engine = True  # the hub of a server writes the list of workers


class Served:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.seconds = Database(), 1_000.0
        made = EngineParts(self.database, ServerWorkers())
        monkeypatch.setattr(module, "monotonic", lambda: self.seconds)
        nothing: Any = None
        parts = made.runs, made.dispatcher, made.flows, made.flow_control, nothing
        self.definitions = ServedDefinitions(made.context, *parts)

    async def after(self, seconds: float) -> list[str]:
        """What a heartbeat registers then."""
        self.seconds += seconds
        before = len(self.database.registered)
        await self.definitions.refresh_quietly()
        return self.database.registered[before:]


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    made = Served(monkeypatch)
    await made.definitions.refresh()
    assert made.database.registered == ["w v"]
    return made


async def test_what_is_registered_already_is_registered_again_now_and_then(served: Served) -> None:
    """Heartbeats come twice as often; each began the time anew, so that it never came: an older version stayed current."""
    assert await served.after(REGISTER_EVERY_S) == ["w v"]
    assert [await served.after(HEARTBEAT_S) for _ in range(6)] == [[], ["w v"], [], ["w v"], [], ["w v"]]


async def test_an_outage_does_not_put_it_off(served: Served) -> None:
    served.database.away = True
    assert await served.after(REGISTER_EVERY_S) == []
    served.database.away = False
    assert await served.after(HEARTBEAT_S) == ["w v"]
    assert await served.after(1) == []
