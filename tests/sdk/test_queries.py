"""Queries without a database: their definition, and the threads of a worker that compute them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from perdure import Approval, Promise, Signal, State, Update, task, wf, workflow
from perdure.core import commands as cm
from perdure.core import ids
from perdure.core.limits import QUERIES_MAX, QUERY_ANSWER_BYTES_MAX, QUERY_ARGUMENTS_BYTES_MAX, QUERY_THREADS_MAX
from perdure.core.parameters import decode
from perdure.core.work import QueryAnswer, QueryCall
from perdure.errors import InvalidInput, PayloadTooLarge, PerdureError
from perdure.sdk.worker.definitions import WorkerDefinitions
from perdure.sdk.worker.queries import QueryRunner
from tests.fakes.workflow_world import RUN_ID, World

progress = State("unit_query_progress", 0)
total = State("unit_query_total", 1)
go = Signal("unit_query_go", bool)
given = Promise("unit_query_given", bool)
ok = Approval("unit_query_ok")
change = Update("unit_query_change", int, int)


@dataclass
class Place:
    name: str


@task(name="unit_query_step")
async def step() -> int:
    return 1


@workflow(name="unit_query_other")
async def other() -> None: ...


@workflow(name="unit_query_crawl")
async def crawl(urls: list[str], place: Place | None = None, deep: bool = False) -> float:
    progress.set(1)
    total.set(len(urls))
    return percent(1)


@crawl.query
def percent(digits: int = 0) -> float:
    return round(100 * progress.get() / total.get(), digits)


@crawl.query
def about() -> dict[str, Any]:
    run = wf.info()
    place = run.arguments["place"]
    return {
        "id": run.id,
        "same": run.id == wf.run_id(),
        "key": run.key,
        "status": run.status,
        "workflow": run.workflow,
        "arguments": list(run.arguments),
        "place": place.name,
        "deep": run.arguments["deep"],
    }


@crawl.query
def shout() -> str:
    print("not recorded")
    return "x" * QUERY_ANSWER_BYTES_MAX


@crawl.query
def leave() -> None:
    raise SystemExit(3)


@crawl.query
def here() -> tuple[str, float]:
    """No guard of workflow code is on."""
    return threading.current_thread().name, time.time()


held = threading.Event()
met: list[str] = []


@crawl.query
def stubborn() -> None:
    """Ends at the second interruption."""
    for _ in range(2):
        try:
            while True:
                time.monotonic()
        except BaseException as e:
            met.append(type(e).__name__)


@crawl.query
def hang() -> None:
    """In C code: it cannot be interrupted."""
    held.wait()


def call(name: str, arguments: bytes = b"{}", **states: Any) -> QueryCall:
    return QueryCall(
        run_id=RUN_ID,
        workflow="unit_query_crawl",
        name=name,
        arguments=arguments,
        key="k",
        status="success",
        input=b'{"urls":["a","b"],"place":{"name":"here"}}',
        states={f"unit_query_{state}": msgspec.json.encode(value) for state, value in states.items()},
    )


def find(name: str) -> Any:
    return {"unit_query_crawl": crawl, "unit_query_other": other}[name]


@pytest.fixture
async def runner() -> AsyncIterator[QueryRunner]:
    made = QueryRunner(find, None)
    yield made
    held.set()
    made.close()
    held.clear()


async def answered(runner: QueryRunner, one: QueryCall) -> Any:
    answer = await runner.ask(one)
    assert answer.failure is None, answer.failure
    return msgspec.json.decode(answer.value)


async def refused(runner: QueryRunner, one: QueryCall) -> tuple[str, str]:
    answer = await runner.ask(one)
    assert answer.failure is not None, answer.value
    return answer.failure.code, answer.failure.message


async def test_a_query_computes_from_the_states_of_the_run(runner: QueryRunner) -> None:
    assert await answered(runner, call("percent")) == 0.0, "of the defaults"
    assert await answered(runner, call("percent", b'{"digits":1}', progress=1, total=3)) == 33.3
    assert await answered(runner, call("percent", b'{"*":[2]}', progress=1, total=3)) == 33.33


async def test_a_query_knows_the_run(runner: QueryRunner) -> None:
    found = await answered(runner, call("about"))
    assert found.pop("id")
    assert found == {
        "same": True,
        "key": "k",
        "status": "success",
        "workflow": "unit_query_crawl",
        "arguments": ["urls", "place", "deep"],
        "place": "here",
        "deep": False,
    }


def test_workflow_code_knows_its_run_in_the_same_way() -> None:
    seen: list[wf.CurrentRun] = []

    @workflow(name="unit_query_informed")
    async def informed(n: int, more: int = 2) -> None:
        seen.append(wf.info())

    World(informed, 1).run()
    (run,) = seen
    assert (run.workflow, run.key, run.status) == ("unit_query_informed", "", "running")
    assert (run.id, run.arguments) == (ids.text(RUN_ID), {"n": 1, "more": 2})


@pytest.mark.parametrize(
    "used",
    [
        lambda: progress.set(1),
        progress.clear,
        step,
        lambda: step.map([1]),
        other,
        partial(wf.sleep, "1s"),
        lambda: wf.run("x", time.time),
        lambda: wf.call("t"),
        go.next,
        given.wait,
        ok.wait,
        change.next,
        lambda: change.handle(lambda n: n),
        wf.now,
        wf.uuid,
        wf.random,
        wf.nominal_time,
        lambda: wf.patched("x"),
        lambda: wf.set_attribute("a", 1),
        lambda: wf.attribute("a"),
        wf.unwind,
        wf.commit_undo,
        wf.continue_as_new,
        lambda: go.send("run", True),
        lambda: progress.read("run"),
        lambda: percent.read("run"),
        lambda: other.start(),
    ],
)
async def test_a_query_does_nothing_but_read(used: Callable[[], Any]) -> None:
    @workflow(name="unit_query_acts")
    async def acts() -> None: ...

    @acts.query
    def act() -> None:
        found = used()
        if asyncio.iscoroutine(found):
            asyncio.run(found)

    made = QueryRunner(lambda _: acts, None)
    answer = await made.ask(call("act"))
    assert answer.failure is not None and answer.failure.code == "query_failed", answer
    assert answer.failure.type in ("WorkflowRuleBroken", "PerdureError"), answer.failure


async def test_what_a_query_may_not_do_is_said_with_what_it_may(runner: QueryRunner) -> None:
    @crawl.query
    def write() -> None:
        progress.set(1)

    try:
        code, message = await refused(runner, call("write"))
    finally:
        del crawl.queries["write"]
    assert code == "query_failed"
    assert message.startswith(
        "State.set() or State.clear() does not work in a query, which only reads: it has State.get()"
    )


async def test_what_a_query_raises_is_its_failure(runner: QueryRunner) -> None:
    answer = await runner.ask(call("percent", total=0))
    failure = answer.failure
    assert failure is not None
    assert (failure.code, failure.type) == ("query_failed", "ZeroDivisionError")
    assert "100 * progress.get() / total.get()" in failure.traceback
    assert (await refused(runner, call("leave"))) == ("query_failed", "3"), "the thread goes on"
    assert await answered(runner, call("percent", progress=1)) == 100.0


async def test_an_unknown_query_is_answered_with_the_nearest_one(runner: QueryRunner) -> None:
    code, message = await refused(runner, call("percents"))
    assert code == "not_found"
    assert message.startswith(
        "the workflow 'unit_query_crawl' has no query 'percents'; did you mean 'percent'? It has percent, about"
    )
    code, message = await refused(runner, msgspec.structs.replace(call("percent"), workflow="unit_query_other"))
    assert (code, message) == ("not_found", "the workflow 'unit_query_other' has no query 'percent'. It has none")


async def test_arguments_that_do_not_fit_are_refused_before_the_function_is_called(runner: QueryRunner) -> None:
    for arguments in (b'{"digits":"x"}', b'{"digit":1}', b"[]"):
        assert (await refused(runner, call("percent", arguments)))[0] == "payload_mismatch"


async def test_a_state_of_another_type_fails_the_query(runner: QueryRunner) -> None:
    assert (await refused(runner, call("percent", progress="far")))[0] == "query_failed"


async def test_an_answer_over_the_limit_fails(runner: QueryRunner, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = await refused(runner, call("shout"))
    assert code == "query_failed" and "QUERY_ANSWER_BYTES_MAX=262144" in message
    assert capsys.readouterr().out == "not recorded\n", "what it prints is printed"


async def test_a_query_runs_in_a_thread_without_the_guards_of_workflow_code(runner: QueryRunner) -> None:
    name, _ = await answered(runner, call("here"))
    assert name == "query-here"


async def test_a_query_that_takes_too_long_is_answered_and_interrupted_until_it_ends() -> None:
    runner = QueryRunner(find, None, limit_s=0.1)
    met.clear()
    answer = await runner.ask(call("stubborn"))
    failure = answer.failure
    assert failure is not None
    assert (failure.code, failure.type) == ("query_failed", "TimeoutError")
    assert "QUERY_S_MAX=0.1 s" in failure.message and "stubborn" in failure.traceback
    async with asyncio.timeout(120):
        while runner._running:
            await asyncio.to_thread(next(iter(runner._running)).thread.join, 0.1)  # type: ignore[union-attr]
    assert met == ["AttemptCancelled", "AttemptCancelled"]
    assert await answered(runner, call("percent")) == 0.0


async def test_queries_that_hang_keep_their_places_and_block_neither_the_loop_nor_later_ones_for_ever() -> None:
    runner = QueryRunner(find, None, limit_s=0.2)
    held.clear()
    stuck = [runner.ask(call("hang")) for _ in range(QUERY_THREADS_MAX)]
    waiting = runner.ask(call("percent"))
    for one in stuck:
        failure = (await one).failure
        assert failure is not None and failure.code == "query_failed"
    late = (await waiting).failure
    assert late is not None and late.code == "unavailable"
    assert f"{QUERY_THREADS_MAX} queries in progress (hang)" in late.message
    held.set()
    later = runner.ask(call("percent"))
    assert (await later).failure is None, "their places are free again"
    held.clear()


async def test_a_query_whose_caller_has_gone_does_not_begin(runner: QueryRunner) -> None:
    for _ in range(QUERY_THREADS_MAX):
        runner.ask(call("hang"))
    gone = runner.ask(call("percent"))
    gone.cancel()
    kept = runner.ask(call("percent"))
    held.set()
    assert (await kept).failure is None
    assert gone.cancelled()


async def test_a_worker_that_closes_answers_what_waits() -> None:
    runner = QueryRunner(find, None)
    held.clear()
    asked = [runner.ask(call("hang")) for _ in range(QUERY_THREADS_MAX + 1)]
    runner.close()
    answers: list[QueryAnswer] = await asyncio.gather(*asked)
    assert {a.failure.code for a in answers if a.failure is not None} == {"unavailable"}
    held.set()


def test_a_query_is_a_plain_function_with_a_name_of_its_own() -> None:
    @workflow(name="unit_query_names")
    async def names() -> None: ...

    def one() -> int:
        return 1

    made = names.query(one)
    assert (made.name, made(), repr(made)) == ("one", 1, "<query one of unit_query_names>")
    with pytest.raises(InvalidInput, match="has a query 'one' already"):
        names.query(one)

    async def two() -> int:
        return 2

    with pytest.raises(InvalidInput, match="plain `def` function; two is `async def`"):
        names.query(two)
    assert list(names.options(key="k").queries) == ["one"], "copies have the same queries"
    for n in range(1, QUERIES_MAX):
        one.__name__ = f"one_{n}"
        names.query(one)
    one.__name__ = "too_many"
    with pytest.raises(InvalidInput, match=f"QUERIES_MAX={QUERIES_MAX}"):
        names.query(one)


def test_inside_its_workflow_a_query_computes_from_the_live_states() -> None:
    world = World(crawl, ["a", "b", "c"]).run()
    assert world.closing == cm.CompleteRun(b"33.3")


def test_outside_a_workflow_a_query_has_no_states() -> None:
    with pytest.raises(PerdureError, match="inside a workflow only"):
        percent()


async def test_reading_a_query_without_a_client_is_refused() -> None:
    with pytest.raises(PerdureError, match="no Perdure client here"):
        await percent.read("run")


def test_arguments_over_the_limit_are_refused_where_they_are_given() -> None:
    @workflow(name="unit_query_wide")
    async def wide() -> None: ...

    @wide.query
    def echo(text: str) -> str:
        return text

    with pytest.raises(PayloadTooLarge, match="QUERY_ARGUMENTS_BYTES_MAX"):
        echo.encode_call(("x" * QUERY_ARGUMENTS_BYTES_MAX,), {})


def test_a_worker_publishes_the_names_of_queries() -> None:
    definitions = WorkerDefinitions(None, None)
    definitions.adopt(crawl)
    published = decode(definitions.code["unit_query_crawl"].parameters)
    assert published is not None
    assert published.queries[:2] == ("percent", "about")
    assert definitions.serves("unit_query_crawl", crawl.version)
    assert not definitions.serves("unit_query_crawl", "another")
    assert not definitions.serves("unit_query_nowhere", crawl.version)
