"""Schedules of a server, for a client that has no database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from perdure.flows.scheduled import BackfillTime, FireView, ScheduleRequest, ScheduleView
from perdure.wire.schedules import CALL_OF, Answered, Asked, decode_answered, encode_asked


class Call(Protocol):
    def __call__(
        self, method: str, request: bytes, decode: Callable[[bytes], Any], *, repeatable: bool = False
    ) -> Awaitable[Any]: ...


class RemoteSchedules:
    """What can be asked twice without harm is asked again when a server goes away; a trigger and a backfill are not."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def _ask(self, asked: Asked) -> Answered:
        again = asked.method not in ("trigger", "backfill")
        answered: Answered = await self._call(
            CALL_OF[asked.method], encode_asked(asked), decode_answered, repeatable=again
        )
        return answered

    async def _view(self, asked: Asked) -> ScheduleView:
        view = (await self._ask(asked)).view
        assert view is not None
        return view

    async def put(self, r: ScheduleRequest) -> tuple[ScheduleView, bool]:
        answered = await self._ask(Asked(method="put", request=r))
        assert answered.view is not None
        return answered.view, answered.created

    async def get(self, name: str) -> ScheduleView:
        return await self._view(Asked(method="get", name=name))

    async def pause(self, name: str, reason: str = "") -> ScheduleView:
        return await self._view(Asked(method="pause", name=name, reason=reason))

    async def resume(self, name: str) -> ScheduleView:
        return await self._view(Asked(method="resume", name=name))

    async def trigger(self, name: str) -> bytes:
        return (await self._ask(Asked(method="trigger", name=name))).run_id

    async def delete(self, name: str) -> None:
        await self._ask(Asked(method="delete", name=name))

    async def times(self, name: str, count: int) -> list[int]:
        return (await self._ask(Asked(method="times", name=name, count=count))).times

    async def fires(self, name: str, before_us: int | None, limit: int) -> list[FireView]:
        return (await self._ask(Asked(method="fires", name=name, before_us=before_us, count=limit))).fires

    async def backfill(self, name: str, since_us: int, until_us: int, *, dry_run: bool = False) -> list[BackfillTime]:
        asked = Asked(method="backfill", name=name, since_us=since_us, until_us=until_us, dry_run=dry_run)
        return (await self._ask(asked)).backfill
