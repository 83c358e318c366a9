"""A lost session is replaced by a new one, an outage is waited out, and a fault costs the session."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.errors import Fenced, Unavailable
from perdure.engine.ports import OpenedSession
from perdure.engine.services.claims import ClaimInDoubt
from perdure.engine.services.lease import Lease
from tests.fakes.engine_parts import EngineParts


class Nothing:
    """Parts that a lease calls and that have nothing to do here."""

    def writable(self) -> None: ...
    def wake(self) -> None: ...


class Database:
    def __init__(self) -> None:
        self.left: list[int] = []

    async def register(self, *_: Any) -> OpenedSession:
        return OpenedSession(8, 100)

    async def leave(self, session: int, settle: Any) -> None:
        self.left.append(session)


@pytest.mark.parametrize(
    ("error", "session", "left"),
    [
        (Fenced("gone"), 8, []),
        (Unavailable("the database is away"), 7, []),
        (ClaimInDoubt("no answer"), 8, [7]),
        (ValueError("a fault"), 8, [7]),
    ],
    ids=["fenced", "outage", "in doubt", "fault"],
)
async def test_what_becomes_of_the_session(error: Exception, session: int, left: list[int]) -> None:
    database, nothing = Database(), Nothing()
    made = EngineParts(database)
    lost = made.published("session_lost")
    lease = Lease(made.context, "engine", nothing, nothing, nothing, nothing)  # type: ignore[arg-type]
    errors: list[Exception] = [error]

    async def body() -> None:
        if errors:
            raise errors.pop()

    await lease.keep("the loop of a test", body)
    assert made.context.session.id == session
    assert database.left == left
    assert len(lost) == (session == 8)
    assert made.counters.sessions_fenced == (session == 8)
