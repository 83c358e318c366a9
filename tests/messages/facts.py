"""Runs that wait for a fact: the result of a child, a timer, their deadline. It comes after something has happened to the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from perdure import Handle, wf, workflow
from perdure.core.api import runs
from perdure.core.work import StartRequest
from tests.fakes.waiting import holds, until
from tests.messages import pairs
from tests.messages.acts import SOON_S, Acts, broken, go, note, step
from tests.messages.pair_doors import VALUE
from tests.messages.pairs import Act, Fact

DUE_S: Final = 3.0
"""When timers and deadlines are due: an act takes less."""
LATE_S: Final = 1.0
"""How long nothing happens after a fact that has no effect."""
EVENTS: Final[Mapping[Fact, str]] = {Fact.CHILD: "ChildSucceeded", Fact.TIMER: "TimerFired", Fact.DEADLINE: "RunFailed"}


@workflow(name="pairs_late_child")
async def late_child() -> int:
    await go.next()
    return VALUE


@workflow(name="pairs_waiter")
async def waiter(fact: str, key: str, n: int = 1) -> Any:
    waiting = asyncio.create_task(_wait(fact, f"{key}-{n}"))
    note.set("here")
    order = await go.next() if n == 1 else "wait"
    if order == "fail":
        await step(key)
    if order == "continue":
        wf.continue_as_new(fact, key, n + 1)
    return None if order == "succeed" else await waiting


async def _wait(fact: str, key: str) -> int:
    match Fact(fact):
        case Fact.CHILD:
            return await late_child.options(parent_close="abandon", key=key)()
        case Fact.TIMER:
            await wf.sleep(DUE_S)
        case Fact.DEADLINE:
            await asyncio.Event().wait()
    return VALUE


@dataclass
class Case:
    fact: Fact
    key: str
    run: Handle[Any]
    due_s: float
    """By the clock of the loop."""


class Facts(Acts):
    async def arrive(self, act: Act, fact: Fact) -> str:
        """What becomes of the fact."""
        case = await self._begin(fact)
        acts: dict[Act, Callable[[], Awaitable[Any]]] = {
            Act.NONE: lambda: case.run.signal(go, "wait"),
            Act.PAUSE: lambda: self._order_and_pause(case),
            Act.SUCCESS: lambda: self._end(case, lambda: case.run.signal(go, "succeed")),
            Act.FAILURE: lambda: self._end(case, lambda: self._order_failure(case)),
            Act.RETRY: lambda: self._end(case, lambda: self._order_failure(case)),
            Act.CANCEL: lambda: self._end(case, case.run.cancel),
            Act.TERMINATE: lambda: self._end(case, case.run.terminate),
            Act.CONTINUE: lambda: self._end(case, lambda: case.run.signal(go, "continue")),
        }
        await acts[act]()
        before = await self._events(case.run)
        assert asyncio.get_running_loop().time() < case.due_s, "the fact was due before the act was done"
        await self._let_arrive(case)
        ends_paused = act is Act.PAUSE and fact is Fact.DEADLINE  # the engine ends the run without its code
        if act in (Act.PAUSE, Act.RETRY) and not ends_paused:
            assert await self._events(case.run) == before
            broken.discard(case.key)
            await (case.run.resume() if act is Act.PAUSE else case.run.retry())
        if act is Act.RETRY and fact is Fact.DEADLINE:  # a retry takes as long as it needs
            await holds(lambda: self._goes_on(case.run), LATE_S)
            return pairs.NO_EFFECT
        if act in (Act.NONE, Act.PAUSE, Act.RETRY):
            return await self._effect(case, len(before))
        await holds(lambda: self._is_as(case.run, before), LATE_S)
        shown = await self.stage.live.get(f"/runs/{case.run.id}")
        assert not shown["unread"], shown
        last = await self._last(case.run)
        if last.id == case.run.id:
            return pairs.NO_EFFECT
        return await self._effect_on_next(case, last)

    async def _begin(self, fact: Fact) -> Case:
        key = self.stage.name()
        given = msgspec.json.encode({"fact": fact.value, "key": key})
        limit_us = int(DUE_S * 1_000_000) if fact is Fact.DEADLINE else 0
        start = StartRequest(workflow="pairs_waiter", version="", input=given, key=key, timeout_us=limit_us)
        due_s = asyncio.get_running_loop().time() + DUE_S
        run = self._handle((await self.stage.embedded(runs.START, start)).run_id)
        await until(lambda: self._waits(run, "StateSet"), "the run waits", SOON_S)
        if fact is Fact.CHILD:
            due_s = float("inf")
            await until(lambda: self._by_key(f"{key}-1"), "the child has started", SOON_S)
        return Case(fact, key, run, due_s)

    async def _order_failure(self, case: Case) -> None:
        broken.add(case.key)
        await case.run.signal(go, "fail")

    async def _order_and_pause(self, case: Case) -> None:
        await case.run.signal(go, "wait")
        await self._settle(case.run)
        await case.run.pause()

    async def _end(self, case: Case, order: Callable[[], Awaitable[Any]]) -> None:
        await order()
        await self._ended(case.run)

    async def _let_arrive(self, case: Case) -> None:
        if case.fact is Fact.CHILD:
            found = await self._by_key(f"{case.key}-1")
            assert found is not None
            child = self._handle(found)
            await child.signal(go, "end")
            await self._ended(child)
        else:
            await until(lambda: asyncio.get_running_loop().time() >= case.due_s, "the fact is due", SOON_S)

    async def _is_as(self, run: Handle[Any], before: list[str]) -> bool:
        return await self._events(run) == before

    async def _goes_on(self, run: Handle[Any]) -> bool:
        return not await self._has_ended(run)

    async def _effect(self, case: Case, after: int) -> str:
        """`after`: how many events the run had before the fact."""
        await self._ended(case.run)
        assert EVENTS[case.fact] in (await self._events(case.run))[after:]
        if case.fact is Fact.DEADLINE:
            return pairs.IN_EFFECT
        assert (await self.stage.live.get(f"/runs/{case.run.id}/result"))["result"] == VALUE
        return pairs.DELIVERED

    async def _effect_on_next(self, case: Case, following: Handle[Any]) -> str:
        """The next run waits for something of its own."""
        await until(lambda: self._waits(following, "StateSet"), "the next run waits", SOON_S)
        if case.fact is Fact.CHILD:
            own = await until(lambda: self._by_key(f"{case.key}-2"), "the next child has started", SOON_S)
            assert EVENTS[case.fact] not in await self._events(following)
            await self._handle(own).signal(go, "end")
        await self._ended(following)
        assert EVENTS[case.fact] in await self._events(following)
        return pairs.ASKED_AGAIN
