"""Stores of engine services that never have anything to do, for tests of an engine that are about something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.engine.engine import Stores
from perdure.engine.services.named_events import Round
from perdure.engine.services.schedules import NextFire
from perdure.engine.services.start_deadlines import Upcoming


class NoTelemetry:
    async def write_logs(self, rows: list[Any]) -> None: ...
    async def write_workers(self, session: int, rows: list[Any]) -> None: ...
    async def write_backlog(self, session: int, rows: list[Any]) -> None: ...
    async def write_task_notes(self, session: int, notes: list[Any]) -> set[bytes]:
        return {note.id for note in notes}


class NoStartDeadlines:
    async def upcoming(self) -> Upcoming:
        return Upcoming(0, None)


class NoEndings:
    async def next_deadline(self) -> tuple[int, int | None]:
        return 0, None

    async def end(self, *_: Any) -> tuple[list[bytes], list[Any]]:
        return [], []


class NoDeferredStarts:
    def __init__(self, store: Any) -> None:
        self._store = store

    async def next_due(self) -> tuple[int, int | None]:
        return 0, None

    async def sweep(self) -> None: ...
    async def expected(self, ns: int, run_ids: Sequence[bytes]) -> set[bytes]:
        found: set[bytes] = await self._store.existing(ns, run_ids)
        return found


class NoSchedules:
    async def next_fire(self) -> NextFire:
        return NextFire(0, None)


class NoNamedEvents:
    async def match(self, find: Any) -> Round:
        return Round(0, [], 0, 0)

    async def trim(self, older_s: float, limit: int) -> int:
        return 0


class NoEventStarts:
    async def take_starts(self, limit: int) -> list[Any]:
        return []


class NoUpdates:
    async def settled(self, places: Sequence[Any]) -> list[Any]:
        return []


class NoPayloads:
    async def sweep(self, *given: Any) -> int:
        return 0


def stores(store: Any, **given: Any) -> Stores:
    """`store` does the work of runs and tasks; the others are given, or idle."""
    parts: dict[str, Any] = {
        "telemetry": NoTelemetry(),
        "task_logs": NoTelemetry(),
        "updates": NoUpdates(),
        "start_deadlines": NoStartDeadlines(),
        "endings": NoEndings(),
        "deferred_starts": NoDeferredStarts(store),
        "schedules": NoSchedules(),
        "named_events": NoNamedEvents(),
        "event_starts": NoEventStarts(),
        "payloads": NoPayloads(),
    }
    return Stores(store=store, **(parts | given))
