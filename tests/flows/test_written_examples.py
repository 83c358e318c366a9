"""The flows that people wrote down before there was an engine for them run as they were written.

Three sources: the YAML of tasks that spread (static, by count, by items, with a limit), flows as data (`{start, nodes, edges}`, one for
every kind of node, with every field that kind has), and the nightly pipeline that uses most of the format at once. Each runs to its end
on a real engine with real tasks.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from perdure import Handle, Perdure, Promise, Signal, flow, task
from perdure.errors import InvalidInput, RunCancelled, RunFailed
from perdure.flows.problems import FlowError
from perdure.sdk import registry
from tests.fakes.waiting import busy, until

END_S = "20s"


class Ledger:
    """What tasks did, and how many of them at a time."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.now = self.most = 0
        self.broken: set[str] = set()
        """Names of what fails for as long as it stands here."""

    async def work(self, *what: Any) -> None:
        self.calls.append(what)
        self.now += 1
        self.most = max(self.most, self.now)
        await busy(0.01)
        self.now -= 1
        if what[0] in self.broken:
            raise RuntimeError(f"{what[0]} is broken")

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Tasks of plain names, which nobody else in this process sees."""
    monkeypatch.setattr(registry, "tasks", registry.Registry("task"))
    monkeypatch.setattr(registry, "workflows", registry.Registry("workflow"))
    ledger = Ledger()
    define_tasks(ledger)
    define_services(ledger)
    return ledger


def define_tasks(ledger: Ledger) -> None:
    @task
    async def discover(day: str = "", files: int = 3) -> dict[str, Any]:
        await ledger.work("discover", day)
        return {"count": 10, "files": [f"{chr(97 + i % 26)}.csv" for i in range(files)]}

    @task
    async def process(parallel_index: int, parallel_count: int, item: str | None = None) -> dict[str, Any]:
        await ledger.work("process", parallel_index, parallel_count, item)
        return {"index": parallel_index, "of": parallel_count, "item": item}

    @task(retry=1)
    async def load() -> str:
        await ledger.work("load")
        return "loaded"

    @task
    async def report(load: str | None) -> str:
        await ledger.work("report", load)
        return f"load gave {load}"

    @task
    async def tidy(load: str | None) -> str:
        await ledger.work("tidy", load)
        return "tidied"


def define_services(ledger: Ledger) -> None:
    """In the protocol of flows as data: an input and params in, a result out."""

    @task
    async def transform(input: Any, params: dict[str, Any]) -> Any:
        await ledger.work("transform", input, params)
        match params.get("op"):
            case "upper":
                return input.upper()
            case "lower":
                return input.lower()
            case "mul":
                return input * params["by"]
            case _:
                raise ValueError(f"no such op: {params.get('op')}")

    @task(name="sum")
    async def add_up(input: list[int], params: dict[str, Any]) -> dict[str, Any]:
        await ledger.work("sum", input)
        return {"total": sum(input), "count": len(input)}

    @task
    async def route(input: Any, params: dict[str, Any]) -> dict[str, str]:
        await ledger.work("route", input)
        return {"action": "goB" if params["branch"] == "B" else "goC"}

    @task
    async def flaky(input: Any, params: dict[str, Any]) -> int:
        await ledger.work("flaky", input)
        if len(ledger.of("flaky")) < params["until"]:
            raise ConnectionError("not yet")
        return len(ledger.of("flaky"))

    @task
    async def picky(input: Any, params: dict[str, Any]) -> Any:
        await ledger.work("picky", input)
        if input == params.get("refuses"):
            raise ValueError(f"{input} is refused")
        return input


@pytest.fixture
async def client(dsn: str, ledger: Ledger) -> AsyncIterator[Perdure]:
    async with Perdure(dsn) as client:
        yield client


async def begin(client: Perdure, document: str, /, **given: Any) -> Handle[Any]:
    await client.deploy(document, name="seed")
    return await flow("seed").start(**given)


async def play(client: Perdure, document: str, /, **given: Any) -> Any:
    """Deploy, run, and hand back what came out."""
    return await (await begin(client, document, **given)).result(END_S)


async def fails(client: Perdure, document: str, /, **given: Any) -> RunFailed:
    handle = await begin(client, document, **given)
    with pytest.raises(RunFailed) as caught:
        await handle.result(END_S)
    return caught.value


async def waits(handle: Handle[Any], event: str) -> None:
    """Until the run's history has an event of this name."""

    async def is_recorded() -> bool:
        return event in [type(r.event).__name__ for r in await handle.history()]

    await until(is_recorded)


# -- tasks that spread -------------------------------------------------------------------------------------------------

STATIC = """
tasks:
  process:
    parallel: 4
"""

BY_COUNT = """
tasks:
  discover:
    # outputs: { "count": 10 }
  process:
    depends_on: [discover]
    parallel: discover.count
"""

BY_ITEMS = """
tasks:
  discover:
    # outputs: { "files": ["a.csv", "b.csv", "c.csv"] }
  process:
    depends_on: [discover]
    foreach: discover.files
"""

LIMITED = """
tasks:
  discover:
  process:
    depends_on: [discover]
    foreach: discover.files
    concurrency: 4
"""

LIMITED_AS_WRITTEN = """
tasks:
  process:
    foreach: discover.files
    concurrency: 4
"""


async def test_static_parallelism_is_that_many_executions(client: Perdure, ledger: Ledger) -> None:
    found = await play(client, STATIC)
    assert found == {"process": [{"index": i, "of": 4, "item": None} for i in range(4)]}
    assert sorted(ledger.of("process")) == [(i, 4, None) for i in range(4)]


async def test_a_count_comes_from_an_output(client: Perdure, ledger: Ledger) -> None:
    found = await play(client, BY_COUNT)
    assert [p["index"] for p in found["process"]] == list(range(10))
    assert {p["of"] for p in found["process"]} == {10}


async def test_items_come_from_an_output(client: Perdure, ledger: Ledger) -> None:
    found = await play(client, BY_ITEMS)
    assert found == {"process": [{"index": i, "of": 3, "item": f"{c}.csv"} for i, c in enumerate("abc")]}


async def test_a_limit_holds(client: Perdure, ledger: Ledger) -> None:
    found = await play(client, LIMITED, files=25)
    assert [p["index"] for p in found["process"]] == list(range(25)) and len(ledger.of("process")) == 25
    assert 1 < ledger.most <= 4


async def test_a_fragment_says_what_it_lacks(client: Perdure) -> None:
    with pytest.raises(FlowError, match="unknown name 'discover'"):
        await client.deploy(LIMITED_AS_WRITTEN, name="seed")
    with pytest.raises(FlowError, match="add 'discover' to its depends_on"):
        await client.deploy(LIMITED_AS_WRITTEN + "  discover:\n", name="seed")


MAX_RETRIES = """
tasks:
  load:
    max_retries: 3
"""

ON_FAILURE = """
tasks:
  load:
    max_retries: 1
  report:
    depends_on: [load]
  tidy:
    depends_on: [load]
    on_failure: run
"""


async def test_max_retries_counts_executions(client: Perdure, ledger: Ledger) -> None:
    ledger.broken.add("load")
    document = MAX_RETRIES.replace("max_retries: 3", "retry: {max_attempts: 3, delay: 10ms}")
    assert "load is broken" in str(await fails(client, document))
    assert len(ledger.of("load")) == 3
    ledger.broken.clear()
    assert await play(client, MAX_RETRIES) == {"load": "loaded"}


async def test_what_follows_a_failure_is_skipped_unless_it_is_to_run(client: Perdure, ledger: Ledger) -> None:
    ledger.broken.add("load")
    handle = await begin(client, ON_FAILURE)
    with pytest.raises(RunFailed, match="load: load is broken"):
        await handle.result(END_S)
    assert ledger.of("report") == [] and ledger.of("tidy") == [(None,)]
    ledger.broken.clear()
    await handle.retry()
    assert await handle.result(END_S) == {"report": "load gave loaded", "tidy": "tidied"}
    assert len(ledger.of("load")) == 2, "the failed task ran again"
    assert len(ledger.of("tidy")) == 1, "what had succeeded was kept"


async def test_a_run_is_cancelled(client: Perdure) -> None:
    handle = await begin(client, "tasks: {rest: {sleep: 1h}, load: {depends_on: rest}}")
    await waits(handle, "TimerStarted")
    await handle.cancel("enough")
    with pytest.raises(RunCancelled):
        await handle.result(END_S)


# -- flows as data -----------------------------------------------------------------------------------------------------

EXECUTOR = """
{"start": "shout",
 "nodes": {
   "shout": {
     "kind": "executor",
     "service": "transform",
     "params": {"op": "upper"},
     "prep": {"input_key": "$params.text"},
     "post": {"output_key": "shouted", "action_static": "done"},
     "max_retries": 2, "wait_ms": 10, "max_attempts": 2, "attempt_delay_ms": 5, "weighted_by_load": true},
   "count": {
     "kind": "executor",
     "service": "sum",
     "prep": {"input_key": "$params.numbers"},
     "post": {"output_map": {"result.total": "total", "result.count": "count"}, "action_key": "total"}},
   "six": {
     "kind": "executor",
     "service": "picky",
     "prep": {"input_map": {"text": "shouted", "total": "$shared.result.total", "name": "$params.text", "before": "$input.total"}},
     "post": {"output_key": "all"}}},
 "edges": [
   {"from": "shout", "action": "done", "to": "count"},
   {"from": "count", "action": "6", "to": "six"}]}
"""


async def test_an_executor_with_every_field(client: Perdure, ledger: Ledger) -> None:
    found = await play(client, EXECUTOR, text="hello", numbers=[1, 2, 3])
    assert found == {
        "shouted": "HELLO",
        "result": {"total": 6, "count": 3},
        "all": {"text": "HELLO", "total": 6, "name": "hello", "before": 6},
    }
    assert ledger.of("transform") == [("hello", {"text": "hello", "numbers": [1, 2, 3], "op": "upper"})]


RETRIES = """
{"start": "try",
 "nodes": {"try": {"kind": "executor", "service": "flaky", "params": {"until": 4}, "post": {"output_key": "tries"},
                   "max_retries": 2, "wait_ms": 10, "max_attempts": 2, "attempt_delay_ms": 5}}}
"""


async def test_retries_are_rounds_times_attempts(client: Perdure, ledger: Ledger) -> None:
    assert await play(client, RETRIES) == {"tries": 4}
    ledger.calls.clear()
    assert "not yet" in str(await fails(client, RETRIES.replace('"until": 4', '"until": 5')))
    assert len(ledger.of("flaky")) == 4
    ledger.calls.clear()
    once = RETRIES.replace(
        '"max_retries": 2, "wait_ms": 10, "max_attempts": 2, "attempt_delay_ms": 5', '"queue": "default"'
    )
    await fails(client, once)
    assert len(ledger.of("flaky")) == 1, "nothing is tried again unless it is asked for"


CHOICE = """
{"start": "which",
 "nodes": {
   "which": {
     "kind": "choice",
     "params": {"limit": 100},
     "prep": {"input_key": "$params.amount"},
     "choice_cases": [
       {"action": "none",  "expr": {"not": {"exists": "$params.amount"}}},
       {"action": "large", "expr": {"and": [{"ge": ["$input", "$params.limit"]}, {"ne": ["$params.sort", "gift"]}]}},
       {"action": "known", "expr": {"or": [{"in": ["$params.sort", ["gift", "bill"]]}, {"contains": ["$params.tags", "known"]}]}},
       {"action": "small", "expr": {"and": [{"lt": ["$input", 10]}, {"gt": ["$input", 0]}]}},
       {"action": "ten",   "expr": {"eq": ["$input", 10]}},
       {"action": "low",   "expr": {"le": ["$input", 20]}}],
     "default_action": "other",
     "post": {"output_key": "amount"}},
   "none":  {"kind": "executor", "service": "picky", "params": {"way": "none"},  "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}},
   "large": {"kind": "executor", "service": "picky", "params": {"way": "large"}, "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}},
   "known": {"kind": "executor", "service": "picky", "params": {"way": "known"}, "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}},
   "small": {"kind": "executor", "service": "picky", "params": {"way": "small"}, "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}},
   "ten":   {"kind": "executor", "service": "picky", "params": {"way": "ten"},   "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}},
   "rest":  {"kind": "executor", "service": "picky", "params": {"way": "rest"},  "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}}},
 "edges": [
   {"from": "which", "action": "none", "to": "none"},
   {"from": "which", "action": "large", "to": "large"},
   {"from": "which", "action": "known", "to": "known"},
   {"from": "which", "action": "small", "to": "small"},
   {"from": "which", "action": "ten", "to": "ten"},
   {"from": "which", "action": "default", "to": "rest"}]}
"""


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ({}, "none"),
        ({"amount": 100, "sort": "bill"}, "large"),
        ({"amount": 100, "sort": "gift"}, "known"),
        ({"amount": 5, "tags": ["well", "known"]}, "known"),
        ({"amount": 5}, "small"),
        ({"amount": 10}, "ten"),
        ({"amount": 20}, "rest"),
        ({"amount": 50}, "rest"),
    ],
)
async def test_a_choice_takes_the_first_case_that_holds(client: Perdure, given: dict[str, Any], way: str) -> None:
    assert await play(client, CHOICE, **given) == {"amount": given.get("amount"), "way": way}


async def test_a_choice_without_a_case_goes_by_the_result_and_then_by_default(client: Perdure) -> None:
    document = """
    {"start": "which",
     "nodes": {
       "which": {"kind": "choice", "prep": {"input_key": "$params.ask"}, "choice_cases": [{"action": "left", "expr": {"eq": ["$input.go", "L"]}}],
                 "default_action": "right", "post": {"action_key": "go"}},
       "left":   {"kind": "executor", "service": "picky", "params": {"way": "left"},   "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}},
       "middle": {"kind": "executor", "service": "picky", "params": {"way": "middle"}, "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}},
       "right":  {"kind": "executor", "service": "picky", "params": {"way": "right"},  "prep": {"input_key": "$params.way"}, "post": {"output_key": "way"}}},
     "edges": [{"from": "which", "action": "left", "to": "left"}, {"from": "which", "action": "middle", "to": "middle"},
               {"from": "which", "action": "right", "to": "right"}]}
    """
    for ask, way in (({"go": "L"}, "left"), ({"go": "middle"}, "middle"), ({}, "right")):
        assert await play(client, document, ask=ask) == {"way": way}


PARALLEL = """
{"start": "all",
 "nodes": {
   "all": {
     "kind": "parallel",
     "parallel_services": ["picky", "transform", "picky"],
     "parallel_mode": "concurrent",
     "max_parallel": 2,
     "failure_strategy": "fail_fast",
     "params": {"op": "upper", "refuses": "no"},
     "prep": {"input_key": "$params.text"},
     "post": {"output_key": "results", "action_static": "done"},
     "max_retries": 1},
   "end": {"kind": "executor", "service": "picky", "prep": {"input_key": "results"}, "post": {"output_key": "seen"}}},
 "edges": [{"from": "all", "action": "done", "to": "end"}]}
"""


async def test_parallel_services_give_their_results_in_order(client: Perdure, ledger: Ledger) -> None:
    results = ["yes", "YES", "yes"]
    assert await play(client, PARALLEL, text="yes") == {"results": results, "seen": results}
    assert ledger.most <= 2
    derived = PARALLEL.replace('"parallel_services": ["picky", "transform", "picky"],', "").replace(
        "concurrent", "sequential"
    )
    ledger.most = 0
    assert await play(client, derived, text="yes", services=["transform", "picky"]) == {
        "results": ["YES", "yes"],
        "seen": ["YES", "yes"],
    }
    assert ledger.most == 1, "one after the other"


async def test_a_parallel_node_fails_as_its_strategy_says(client: Perdure, ledger: Ledger) -> None:
    assert "no is refused" in str(await fails(client, PARALLEL.replace("concurrent", "sequential"), text="no"))
    assert len(ledger.of("picky")) == 1 and not ledger.of("transform"), "nothing was begun after the first failure"
    ledger.calls.clear()
    assert "2 of 3 failed" in str(await fails(client, PARALLEL.replace("fail_fast", "collect_errors"), text="no"))
    assert len(ledger.of("transform")) == 1
    found = await play(client, PARALLEL.replace("fail_fast", "ignore_errors"), text="no")
    assert found["results"] == [None, "NO", None]


SUBFLOW = """
{"start": "inner",
 "nodes": {
   "inner": {
     "kind": "subflow",
     "params": {"op": "upper"},
     "prep": {"input_key": "$params.text"},
     "subflow": {
       "start": "shout",
       "nodes": {
         "shout": {"kind": "executor", "service": "transform", "post": {"output_key": "shouted"}},
         "again": {"kind": "executor", "service": "picky", "prep": {"input_map": {"it": "shouted", "from": "$params.text"}}, "post": {"output_key": "both"}}},
       "edges": [{"from": "shout", "action": "default", "to": "again"}]},
     "post": {"output_key": "inside", "action_key": "shouted"}},
   "end": {"kind": "executor", "service": "transform", "params": {"op": "lower"}, "prep": {"input_key": "inside.shouted"}, "post": {"output_key": "calm"}}},
 "edges": [{"from": "inner", "action": "HEY", "to": "end"}]}
"""


async def test_a_subflow_gives_its_shared_state(client: Perdure) -> None:
    inside = {"shouted": "HEY", "both": {"it": "HEY", "from": "hey"}}
    assert await play(client, SUBFLOW, text="hey") == {"inside": inside, "calm": "hey"}
    assert await play(client, SUBFLOW, text="ho") == {"inside": {"shouted": "HO", "both": {"it": "HO", "from": "ho"}}}


TIMER = """
{"start": "pause",
 "nodes": {
   "pause": {"kind": "timer", "params": {"delay_ms": 300}, "post": {"action_static": "due"}},
   "end": {"kind": "executor", "service": "picky", "prep": {"input_key": "$params.text"}, "post": {"output_key": "after"}}},
 "edges": [{"from": "pause", "action": "due", "to": "end"}]}
"""


async def test_a_timer_takes_its_time(client: Perdure) -> None:
    began = asyncio.get_running_loop().time()
    assert await play(client, TIMER, text="x") == {"after": "x"}
    assert asyncio.get_running_loop().time() - began >= 0.3


FOREACH = """
{"start": "each",
 "nodes": {
   "each": {
     "kind": "foreach",
     "service": "picky",
     "params": {"refuses": 3},
     "prep": {"input_key": "$params.numbers"},
     "parallel_mode": "concurrent",
     "max_parallel": 2,
     "failure_strategy": "ignore_errors",
     "post": {"output_key": "kept", "action_static": "sum"}},
   "sum": {"kind": "executor", "service": "sum", "prep": {"input_key": "kept"}, "post": {"output_key": "result"}}},
 "edges": [{"from": "each", "action": "sum", "to": "sum"}]}
"""


async def test_foreach_calls_its_service_for_every_item(client: Perdure, ledger: Ledger) -> None:
    found = await play(client, FOREACH, numbers=[1, 2, 4, 5])
    assert found == {"kept": [1, 2, 4, 5], "result": {"total": 12, "count": 4}}
    assert 1 < ledger.most <= 2
    ledger.most = 0
    await play(client, FOREACH.replace("concurrent", "sequential"), numbers=[1, 2])
    assert ledger.most == 1


async def test_foreach_fails_as_its_strategy_says(client: Perdure, ledger: Ledger) -> None:
    ended = FOREACH.replace('"action_static": "sum"', '"action_static": "end"').replace(
        '"sum", "to": "sum"', '"more", "to": "sum"'
    )
    assert await play(client, ended, numbers=[1, 3, 4]) == {"kept": [1, None, 4]}
    ledger.calls.clear()
    fast = FOREACH.replace("ignore_errors", "fail_fast").replace("concurrent", "sequential")
    assert "[1] 3 is refused" in str(await fails(client, fast, numbers=[1, 3, 4]))
    assert ledger.of("picky") == [(1,), (3,)]
    ledger.calls.clear()
    collect = FOREACH.replace("ignore_errors", "collect_errors")
    assert "1 of 3 failed: [1] 3 is refused" in str(await fails(client, collect, numbers=[1, 3, 4]))
    assert sorted(ledger.of("picky")) == [(1,), (3,), (4,)]


WAIT_EVENT = """
{"start": "paid",
 "nodes": {
   "paid": {
     "kind": "wait_event",
     "params": {"signal_key": "payment", "timeout_ms": 60000},
     "post": {"output_key": "received", "action_key": "state"}},
   "ship": {"kind": "executor", "service": "picky", "prep": {"input_key": "$shared.payment.amount"}, "post": {"output_key": "shipped"}},
   "late": {"kind": "executor", "service": "picky", "prep": {"input_key": "$params.text"}, "post": {"output_key": "late"}}},
 "edges": [{"from": "paid", "action": "settled", "to": "ship"}, {"from": "paid", "action": "timeout", "to": "late"}]}
"""


async def test_an_event_is_waited_for(client: Perdure) -> None:
    handle = await begin(client, WAIT_EVENT, text="too late")
    await waits(handle, "TimerStarted")
    payment = {"state": "settled", "amount": 12}
    await Signal("payment", dict[str, Any]).send(handle.id, payment)
    assert await handle.result(END_S) == {"received": payment, "payment": payment, "shipped": 12}


async def test_an_event_that_does_not_come_has_an_edge_of_its_own(client: Perdure) -> None:
    document = WAIT_EVENT.replace("60000", "50")
    assert await play(client, document, text="too late") == {"late": "too late"}
    assert "no answer came" in str(await fails(client, document.replace('"action": "timeout"', '"action": "slow"')))


async def test_an_event_that_is_there_already_is_not_waited_for(client: Perdure) -> None:
    payment = {"state": "settled", "amount": 3}
    document = WAIT_EVENT.replace("$shared.payment.amount", "$params.payment.amount")
    assert await play(client, document, payment=payment) == {"received": payment, "shipped": 3}


APPROVAL = """
{"start": "ask",
 "nodes": {
   "ask": {
     "kind": "approval",
     "params": {"approval_key": "publish"},
     "post": {"output_key": "answer"}},
   "yes": {"kind": "executor", "service": "picky", "prep": {"input_key": "$params.text"}, "post": {"output_key": "published"}},
   "no": {"kind": "executor", "service": "picky", "prep": {"input_key": "$params.text"}, "post": {"output_key": "withdrawn"}}},
 "edges": [{"from": "ask", "action": "approved", "to": "yes"}, {"from": "ask", "action": "rejected", "to": "no"}]}
"""


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (True, "published"),
        ("yes", "published"),
        ("approved", "published"),
        ({"approved": True}, "published"),
        (False, "withdrawn"),
        ("no", "withdrawn"),
        ("rejected", "withdrawn"),
        ({"decision": "rejected"}, "withdrawn"),
    ],
)
async def test_an_approval_goes_the_way_of_its_answer(client: Perdure, answer: Any, key: str) -> None:
    handle = await begin(client, APPROVAL, text="x")
    await waits(handle, "PromiseCreated")
    await Signal("publish", Any).send(handle.id, answer)
    assert await handle.result(END_S) == {"answer": answer, key: "x"}


async def test_an_approval_has_its_action_in_the_answer(client: Perdure) -> None:
    document = APPROVAL.replace('"output_key": "answer"', '"output_key": "answer", "action_key": "way"')
    for answer in ({"way": "rejected", "approved": True}, {"way": "approved", "approved": False}):
        handle = await begin(client, document, text="x")
        await Promise("publish", Any).resolve(handle.id, answer)
        key = "published" if answer["way"] == "approved" else "withdrawn"
        assert await handle.result(END_S) == {"answer": answer, key: "x"}


BRANCHES = """
{"start": "A",
 "nodes": {
   "A": {"kind": "executor", "service": "transform", "params": {"op": "mul", "by": 3}, "prep": {"input_key": "$params.n"}, "post": {"output_key": "tripled"}},
   "route": {"kind": "executor", "service": "route", "post": {"action_key": "action"}},
   "B": {"kind": "executor", "service": "sum", "prep": {"input_key": "$params.numbers"}, "post": {"output_key": "sum"}},
   "C": {"kind": "executor", "service": "transform", "params": {"op": "upper"}, "prep": {"input_key": "$params.text"}, "post": {"output_key": "text"}}},
 "edges": [
   {"from": "A", "action": "default", "to": "route"},
   {"from": "route", "action": "goB", "to": "B"},
   {"from": "route", "action": "goC", "to": "C"}]}
"""


async def test_branches_are_taken_by_what_a_service_says(client: Perdure) -> None:
    b = await play(client, BRANCHES, n=2, branch="B", numbers=[1, 2], text="x")
    assert b == {"tripled": 6, "sum": {"total": 3, "count": 2}}
    c = await play(client, BRANCHES, n=2, branch="C", numbers=[1, 2], text="x")
    assert c == {"tripled": 6, "text": "X"}


async def test_a_failure_without_an_edge_fails_the_run_and_one_with_an_edge_goes_on(client: Perdure) -> None:
    assert (await fails(client, BRANCHES, n=2, branch="B", numbers=[1, "x"])).failure.type == "PayloadMismatch"
    caught = BRANCHES.replace('"edges": [', '"edges": [{"from": "B", "action": "error", "to": "C"},')
    found = await play(client, caught, n=2, branch="B", numbers=[1, "x"], text="saved")
    assert found == {"tripled": 6, "text": "SAVED"}


# -- the nightly pipeline ----------------------------------------------------------------------------------------------

NIGHTLY = """
flow: nightly-etl
input: {day: {type: string, format: date}}
triggers: [{cron: "0 8 * * *", tz: Europe/Paris, overlap: skip}]
defaults: {retry: 3, timeout: 5m}
tasks:
  discover: {python: "etl:discover", with: {day: "${ input.day }"}}
  process:
    depends_on: [discover]
    foreach: discover.files          # also: parallel: 4 | discover.count
    concurrency: 4
    on_error: collect                # fail_fast | collect | ignore
    http: {service: transform, body: "${ item }"}
  route:   {depends_on: [process], choice: [{when: "size(process) > 100", then: review}, {else: publish}]}
  review:  {approval: {assignees: [ops], timeout: 2d}, then: {approved: publish, rejected: cleanup}}
  publish: {flow: publish-report, with: {files: "${ process }"}}
  cleanup: {run: [./rm.sh], run_if: any_failed}
output: "${ publish }"
"""

PUBLISH = """
flow: publish-report
input: {files: {type: array}}
tasks:
  counted: {value: "${ size(input.files) }"}
output: {files: "${ counted }", last: "${ last(input.files) }"}
"""


class Service(BaseHTTPRequestHandler):
    """`POST /exec/transform`: `{input, params}` in, `{result, error}` out."""

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/exec/transform" and given["params"] == {}
        bad = given["input"] == "c.csv" and self.server.refuses  # type: ignore[attr-defined]
        answer = {"result": None, "error": "unreadable"} if bad else {"result": given["input"].upper(), "error": ""}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        server.refuses = False  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
async def nightly(
    dsn: str, ledger: Ledger, service: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Perdure]:
    """With a worker that reaches the service and may run commands where rm.sh is."""
    script = tmp_path / "rm.sh"
    script.write_text('#!/bin/sh\necho removed > "$(dirname "$0")/cleaned"\n')
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    services = {"transform": f"http://127.0.0.1:{service.server_address[1]}"}
    async with Perdure(dsn, services=services, executors=["process"]) as client:
        await client.deploy(PUBLISH)
        await client.deploy(NIGHTLY)
        yield client


def define_discover(count: int) -> None:
    """As `discover` of the module etl: the day's files."""

    @task(name="discover")
    async def discover(day: str) -> dict[str, Any]:
        assert day == "2026-11-15"
        return {"files": [f"{chr(97 + i % 26)}.csv" for i in range(count)]}

    registry.tasks.adopt(discover)


async def start_nightly(client: Perdure, files: int) -> Handle[Any]:
    define_discover(files)
    assert client.worker is not None
    client.worker.adopt(registry.tasks.get("discover"))
    return await flow("nightly-etl").start(day="2026-11-15")


async def test_a_small_night_is_published_at_once(nightly: Perdure, tmp_path: Path) -> None:
    handle = await start_nightly(nightly, 3)
    assert await handle.result(END_S) == {"files": 3, "last": "C.CSV"}
    assert not (tmp_path / "cleaned").exists()


async def test_a_large_night_is_published_when_somebody_agrees(nightly: Perdure, tmp_path: Path) -> None:
    handle = await start_nightly(nightly, 101)
    await waits(handle, "PromiseCreated")
    await Promise("review", bool).resolve(handle.id, True)
    assert await handle.result(END_S) == {"files": 101, "last": "W.CSV"}
    assert not (tmp_path / "cleaned").exists()


async def test_a_large_night_is_cleaned_up_when_somebody_objects(nightly: Perdure, tmp_path: Path) -> None:
    handle = await start_nightly(nightly, 101)
    await waits(handle, "PromiseCreated")
    await Promise("review", bool).resolve(handle.id, False)
    assert await handle.result(END_S) is None
    assert (tmp_path / "cleaned").read_text() == "removed\n"


async def test_a_bad_file_fails_the_night_and_cleans_up(
    nightly: Perdure, service: ThreadingHTTPServer, tmp_path: Path
) -> None:
    await nightly.deploy(NIGHTLY.replace("retry: 3", "retry: {max_attempts: 2, delay: 10ms}"))
    service.refuses = True  # type: ignore[attr-defined]
    handle = await start_nightly(nightly, 4)
    with pytest.raises(RunFailed, match=r"process: 1 of 4 failed: \[2\] the service 'transform' failed: unreadable"):
        await handle.result(END_S)
    assert (tmp_path / "cleaned").exists()
    service.refuses = False  # type: ignore[attr-defined]
    await handle.retry()
    assert await handle.result(END_S) == {"files": 4, "last": "D.CSV"}


async def test_a_night_without_a_date_is_refused(nightly: Perdure) -> None:
    with pytest.raises(InvalidInput, match=r"input\.day is missing; nightly-etl takes day"):
        await flow("nightly-etl").start()
