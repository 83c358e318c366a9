"""Flows of the corpus and the same workflows in plain Python: the same tasks with the same arguments, and the same end.

Both run on a real engine and a real worker, with time that skips. Tasks note what they were called with, attempt by attempt.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from perdure import Handle, Promise, Retry, Signal, Task, TestEnv, Workflow, flow, wf, workflow
from perdure.errors import InvalidInput, RunFailed, TaskFailed
from tests.fakes.waiting import turns
from tests.flows.case import CORPUS, load

Answer = Callable[[dict[str, Any], int], Any]
"""How a task ends: from its arguments and the number of its execution with those."""

go = Signal("go", dict[str, str])
other = Signal("other", int)
review = Promise("review", bool)


class Notes:
    """What tasks did."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self._answers = answers
        self.executions: list[tuple[str, str]] = []
        self.in_flight = self.peak = 0

    async def did(self, name: str, arguments: dict[str, Any]) -> Any:
        self.executions.append((name, msgspec.json.encode(arguments, order="sorted").decode()))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await turns()
            answer = self._answers.get(name, lambda arguments, n: {"did": name})
            return answer(arguments, self.executions.count(self.executions[-1]))
        finally:
            self.in_flight -= 1


notes: Notes


def noted(name: str, *parameters: str) -> Task[..., Any]:
    """A task with these parameters, each None unless given. Not registered: these names are everybody's."""

    async def do(**arguments: Any) -> Any:
        return await notes.did(name, arguments)

    signature = [inspect.Parameter(p, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any) for p in parameters]
    do.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    return Task(do, {"name": name})


async def _process(n: int) -> Any:
    return await notes.did("process", {"n": n})


async def _shard(i: int) -> Any:
    return await notes.did("shard", {"i": i})


process: Task[[int], Any] = Task(_process, {"name": "process"})
shard: Task[[int], Any] = Task(_shard, {"name": "shard"})
(b, big, cleanup, huge, left, never, none, report, right, ship, some, top) = map(
    noted, ("b", "big", "cleanup", "huge", "left", "never", "none", "report", "right", "ship", "some", "top")
)
a = noted("a", "by", "w")
c = noted("c", "b")
cell = noted("cell", "v", "at")
end = noted("end", "x", "step", "sub")
escalate = noted("escalate", "got")
fix = noted("fix", "input", "params")
meet = noted("meet", "l", "r")
s = noted("s", "input", "params")
step = noted("step", "x", "did", "a")
work = noted("work", "n")
TASKS: Iterable[Task[..., Any]] = (
    a,
    b,
    big,
    c,
    cell,
    cleanup,
    end,
    escalate,
    fix,
    huge,
    left,
    meet,
    never,
    none,
    process,
    report,
    right,
    s,
    shard,
    ship,
    some,
    step,
    top,
    work,
)


# -- the flows in Python -----------------------------------------------------------------------------------------------


@workflow(name="twin_diamond")
async def diamond() -> Any:
    await top()
    on_the_left, on_the_right = await asyncio.gather(left(), right())
    return {"meet": await meet(l=on_the_left["did"], r=on_the_right["did"])}


@workflow(name="twin_foreach")
async def foreach(items: list[int], n: int) -> Any:
    return {"process": await wf.map(process, items, concurrency=n)}


@workflow(name="twin_parallel")
async def parallel() -> Any:
    ends = await wf.map(shard, range(3), on_error="collect")
    failed = [e for e in ends if isinstance(e, Exception)]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(ends)} shards failed: {failed[0]}")
    return {"shard": ends}


@workflow(name="twin_choice")
async def choice(n: int) -> Any:
    if n > 100:
        return {"huge": await huge()}
    if n > 10:
        return {"big": await big()}
    if n > 1:
        return {"some": await some()}
    return {"none": await none()}


@workflow(name="twin_cleanup")
async def cleaned() -> Any:
    broken = None
    try:
        await a()
    except TaskFailed as error:
        broken = error
    await cleanup()
    await report()
    if broken is not None:
        raise broken
    return {}


@workflow(name="twin_rows")
async def rows(rows: list[list[int]]) -> Any:
    out = []
    for r, cells in enumerate(rows):
        out.append(list(await asyncio.gather(*(cell(v=v, at=[r, i]) for i, v in enumerate(cells)))))
    return {"rows": out}


@workflow(name="twin_worker")
async def worker(x: int, did: str, a: Any) -> Any:
    return {"step": await step(x=x, did=did, a=a)}


@workflow(name="twin_parent")
async def parent(x: int) -> Any:
    first = await a()
    sub = await worker(x=x, **first, a=first)
    return {"end": await end(x=x, **sub, sub=sub)}


@workflow(name="twin_review")
async def reviewed() -> Any:
    try:
        await review.wait(timeout="2d")
    except TimeoutError:
        return {"escalate": await escalate(got=None)}
    return {"ship": await ship()}


@workflow(name="twin_cycle")
async def cycle() -> Any:
    n = 0
    while n < 3:
        n += 1
        await work(n=n)
    return {"n": n}


@workflow(name="twin_wait")
async def waiting() -> Any:
    got = await go.next()
    return {"a": await a(**got, w=got)}


@workflow(name="twin_sleep")
async def sleeping() -> Any:
    await wf.sleep("5m")
    await wf.sleep(timedelta(seconds=1.5))
    return {"c": await c(b=None)}


@workflow(name="twin_patient")
async def patient() -> Any:
    await a.options(retry=Retry(3, delay="1ms", jitter=False))()
    return {"b": await b()}


@workflow(name="twin_mended")
async def mended() -> Any:
    try:
        before = await s.options(retry=1)(input={}, params={})
    except TaskFailed as error:
        wrong = {"code": error.failure.code, "type": error.failure.type, "message": error.failure.message}
        before = await fix.options(retry=1)(input=wrong, params={})
    await s.options(retry=1)(input=before, params={})
    return {}


# -- the pairs ---------------------------------------------------------------------------------------------------------


async def nothing(env: TestEnv, handle: Handle[Any]) -> None:
    pass


async def two_signals(env: TestEnv, handle: Handle[Any]) -> None:
    """A flow refuses a signal that its document doesn't name. Code may read any signal that its program defines."""
    refusal = pytest.raises(InvalidInput, match="no signal 'other'")
    with refusal if (await handle.describe()).workflow == "the-flow" else nullcontext():
        await other.send(handle.id, 1)
    assert await handle.status() == "running"
    await go.send(handle.id, {"by": "ann"})


async def two_days_and_more(env: TestEnv, handle: Handle[Any]) -> None:
    await env.advance("47h")
    assert await handle.status() == "running"
    await env.advance("2h")


async def five_minutes(env: TestEnv, handle: Handle[Any]) -> None:
    await env.advance("4m")
    assert await handle.status() == "running"


def failing(error: Exception, when: Callable[[dict[str, Any], int], bool], value: Any = None) -> Answer:
    def answer(arguments: dict[str, Any], n: int) -> Any:
        if when(arguments, n):
            raise error
        return value

    return answer


@dataclass
class Twin:
    case: str
    python: Workflow[..., Any]
    executions: int
    """How many there have to be: two sides that do nothing would agree as well."""
    input: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    meanwhile: Callable[[TestEnv, Handle[Any]], Awaitable[None]] = nothing
    at_most: int = 100
    failure: str = ""
    """A part of the message of both failures."""


boom = ValueError("boom")
TWINS = [
    Twin("dag/diamond", diamond, 4),
    Twin(
        "dag/foreach_two_at_a_time",
        foreach,
        9,
        {"items": [5, 6, 7, 8, 9, 1, 2, 3, 4], "n": 2},
        {"process": lambda args, n: args["n"] * 2},
        at_most=2,
    ),
    Twin(
        "dag/parallel_collect",
        parallel,
        5,
        {},
        {"shard": failing(ValueError("bad"), lambda args, n: args["i"] == 0)},
        failure="1 of 3",
    ),
    Twin("dag/parallel_collect", parallel, 3),
    Twin("dag/choice_first_match", choice, 1, {"n": 50}),
    Twin("dag/choice_first_match", choice, 1, {"n": 0}),
    Twin("dag/cleanup_is_not_tainted", cleaned, 5, {}, {"a": failing(boom, lambda args, n: True)}, failure="boom"),
    Twin("dag/embedded_spread_within_a_spread", rows, 3, {"rows": [[1, 2], [], [3]]}, {"cell": lambda args, n: args}),
    Twin("dag/child_flow", parent, 3, {"x": 1}),
    Twin("dag/approval_too_late_with_a_route", reviewed, 1, meanwhile=two_days_and_more),
    Twin("graph/cycle_with_a_bound", cycle, 3),
    Twin("dag/wait_for_a_signal", waiting, 1, meanwhile=two_signals),
    Twin("dag/sleep", sleeping, 1, meanwhile=five_minutes),
    Twin("dag/retried_until_it_works", patient, 4, {}, {"a": failing(boom, lambda args, n: n < 3, 3)}),
    Twin("graph/error_edge", mended, 3, {}, {"s": failing(boom, lambda args, n: args["input"] == {})}),
]


@dataclass
class Played:
    executions: list[tuple[str, str]]
    peak: int
    result: Any = None
    failure: str = ""


async def play(env: TestEnv, twin: Twin, start: Awaitable[Handle[Any]]) -> Played:
    global notes
    mine = notes = Notes(twin.answers)
    handle = await start
    await twin.meanwhile(env, handle)
    for _ in range(50):
        if await handle.status() not in ("pending", "running"):
            break
        await env.advance("1m")
    try:
        result, failure = await handle.result("5s"), ""
    except RunFailed as error:
        result, failure = None, error.failure.message
    return Played(sorted(mine.executions), mine.peak, result, failure)


@pytest.mark.parametrize("twin", TWINS, ids=lambda t: f"{t.case}-{TWINS.index(t)}")
async def test_a_flow_does_what_its_twin_in_python_does(twin: Twin) -> None:
    case = load(CORPUS / f"{twin.case}.yaml")
    async with TestEnv() as env:
        for task in TASKS:
            env.client.serve(task)
        for name, document in case.flows.items():
            await env.deploy(document, name=name)
        await env.deploy(case.flow, name="the-flow")
        declared = await play(env, twin, env.start(flow("the-flow"), **twin.input))
        written = await play(env, twin, env.start(twin.python, **twin.input))
    assert declared.executions == written.executions
    assert len(written.executions) == twin.executions
    assert declared.result == written.result
    assert max(declared.peak, written.peak) <= twin.at_most
    if twin.failure:
        assert twin.failure in declared.failure
        assert twin.failure in written.failure
    else:
        assert (declared.failure, written.failure) == ("", "")
        assert written.result is not None


def test_twins_are_of_many_kinds() -> None:
    assert len({t.case for t in TWINS}) >= 10
