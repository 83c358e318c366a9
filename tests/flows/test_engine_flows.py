"""What only an engine shows of declarative flows: versions, missing definitions, children of either kind, retries, rows, and company."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from perdure import EngineSettings, Handle, Perdure, Signal, State, TestEnv, flow, task, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import runs, versions
from perdure.core.api.versions import SetCurrent
from perdure.core.work import StartRequest
from perdure.errors import ChildFailed, NotRegistered, RunCancelled, RunFailed, Stuck
from perdure.store.definitions import PostgresDefinitions
from perdure.store.verify import verify
from tests.fakes.waiting import until

ran: Counter[str] = Counter()
"""Executions by name."""
broken: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_has_run() -> Iterator[None]:
    ran.clear()
    broken.clear()
    yield


@task(name="engflow_do", retry=1)
async def do(name: str) -> str:
    ran[name] += 1
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return name


@workflow(name="engflow_code")
async def code(name: str, times: int = 1) -> str:
    return await do(name) * times


@workflow(name="engflow_parent")
async def parent(name: str) -> list[str]:
    """A flow as a child, seen to fail once and asked again."""
    seen: list[str] = []
    for _ in range(2):
        try:
            seen.append((await flow("engflow-leaf", dict[str, str])(name=name))["said"])
        except ChildFailed as error:
            broken.discard(name)
            seen.append(error.failure.code)
    return seen


LEAF = """
flow: engflow-leaf
input: {name: {type: string}}
tasks:
  say: {python: engflow_do, retry: 1, with: {name: "${ input.name }"}}
output: {said: "${ say }"}
"""


async def until_ended(env: TestEnv, handle: Handle[Any]) -> str:
    for _ in range(50):
        if (status := await handle.status()) not in ("pending", "running"):
            return status
        await env.advance("1h")
    raise AssertionError("it does not end")


async def rows(env: TestEnv, query: str, *args: Any) -> list[asyncpg.Record]:
    async with env.client.store.pool.take() as connection:
        found: list[asyncpg.Record] = await connection.fetch(query, *args)
        return found


async def children(env: TestEnv, handle: Handle[Any]) -> list[Handle[Any]]:
    started = [r.event for r in await handle.history() if isinstance(r.event, ev.ChildStarted)]
    return [await env.client.get(ids.text(e.run_id)) for e in started]


# -- versions ----------------------------------------------------------------------------------------------------------


def dated(version: str, sleep: str = "1h") -> str:
    return f"""
flow: engflow-dated
tasks:
  rest: {{sleep: {sleep}}}
  say: {{python: engflow_do, depends_on: rest, with: {{name: {version}}}}}
output: "${{ say }}"
"""


async def test_a_flow_can_be_started_the_moment_it_is_deployed_elsewhere(dsn: str) -> None:
    request = StartRequest(workflow="just_now", version="", input=b"{}")
    async with Perdure(dsn) as one, Perdure(dsn) as two:
        with pytest.raises(NotRegistered):
            await two._backend.call(runs.START, request)
        await one.deploy({"flow": "just_now", "tasks": {"a": {"value": 1}}})
        ended = await two._backend.call(runs.RUN, request)
        assert ended.outcome is not None
        assert ended.outcome.value == b'{"a":1}'


async def test_a_run_ends_by_the_version_it_began_with() -> None:
    dates = flow("engflow-dated", str)
    async with TestEnv() as env:
        first = await env.deploy(dated("one"))
        old = await env.start(dates)
        second = await env.deploy(dated("two"))
        assert first != second
        new = await env.start(dates)
        await env.advance("2h")
        assert await old.result("5s") == "one"
        assert await new.result("5s") == "two"
        assert ((await old.describe()).version, (await new.describe()).version) == (first, second)
        # Somebody else moves the pointer back; it is seen a second later.
        registry = PostgresDefinitions(env.client.store.pool)
        assert await registry.set_current(env.client.engine.ns, "engflow-dated", first)
        await env.advance("2s")
        assert await env.run(dates) == "one"
        assert not await registry.set_current(env.client.engine.ns, "engflow-dated", "flow-0")


async def test_a_version_that_is_not_activated_waits_for_its_turn() -> None:
    async with TestEnv() as env:
        await env.deploy(dated("one", "1s"))
        later = await env.client.deploy(dated("two", "1s"), activate=False)
        assert await env.run(flow("engflow-dated", str)) == "one"
        await env.client._backend.call(versions.SET_CURRENT, SetCurrent("engflow-dated", later))
        assert await env.run(flow("engflow-dated", str)) == "two"


async def test_a_run_that_left_memory_goes_on_by_its_own_version(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        await env.deploy(dated("one"))
        handle = await env.start(flow("engflow-dated", str))
        await env.deploy(dated("two"))
    async with TestEnv(dsn) as env:
        again = await env.client.get(handle.id, workflow=flow("engflow-dated", str))
        await env.advance("2h")
        assert await again.result("5s") == "one"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (None, "has no definition"),
        ('{"tasks": {"a": {"pyhton": "x"}}}', "cannot be read by this server"),
        ("{", "cannot be read by this server"),
    ],
    ids=["missing", "of another server", "torn"],
)
async def test_a_run_without_its_definition_is_stuck_until_it_is_there(
    dsn: str, document: str | None, why: str
) -> None:
    async with TestEnv(dsn) as env:
        version = await env.deploy(dated("one"))
        handle = await env.start(flow("engflow-dated", str))
    async with TestEnv(dsn) as env:
        of_it = "from perdure.workflow_version where version = $1"
        (kept,) = await rows(env, f"select document {of_it}", version)
        change = "update perdure.workflow_version set document = $2 where version = $1"
        await rows(env, change, version, document)
        again = await env.client.get(handle.id, workflow=flow("engflow-dated", str))
        with pytest.raises(Stuck, match=why):
            await env.advance("2h")
            await again.result("5s")
        stuck = (await again.describe()).stuck or ""
        assert stuck.startswith("flow_unavailable: ") and version in stuck
        assert ran == {}
        await again.resume()
        await env.advance("1s")
        assert (await again.describe()).stuck, "it was not mended"
        await rows(env, change, version, kept["document"])
        await again.resume()
        await env.advance("2h")
        assert await again.result("5s") == "one"
    assert ran == {"one": 1}


async def test_code_does_not_take_over_the_name_of_a_flow(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        version = await env.deploy("flow: engflow-taken\ntasks:\n  a: {value: declared}\noutput: ${ a }")
        assert await env.run(flow("engflow-taken", str)) == "declared"

    @workflow(name="engflow-taken")
    async def taken() -> str:
        return "code"

    async with TestEnv(dsn) as env:
        assert await env.run(taken) == "code", "who has the code at hand means the code"
        env.client.engine.flows.forget(env.client.engine.ns, "engflow-taken")
        assert await env.run(flow("engflow-taken", str)) == "declared"
        (row,) = await rows(env, "select current from perdure.workflow where name = 'engflow-taken'")
        assert row["current"] == version


async def test_a_flow_takes_over_the_name_of_code_when_it_is_deployed(dsn: str) -> None:
    @workflow(name="engflow-given")
    async def given() -> str:
        return "code"

    async with TestEnv(dsn) as env:
        assert await env.run(given) == "code"
        assert await env.run(flow("engflow-given", str)) == "code"
        await env.deploy("flow: engflow-given\ntasks:\n  a: {value: declared}\noutput: ${ a }")
        assert await env.run(flow("engflow-given", str)) == "declared"
    async with TestEnv(dsn) as env:  # with the code still there
        assert await env.run(flow("engflow-given", str)) == "declared"


# -- children ----------------------------------------------------------------------------------------------------------


async def test_code_starts_a_flow_as_its_child() -> None:
    async with TestEnv() as env:
        await env.deploy(LEAF)
        assert await env.run(parent, "x") == ["x", "x"]
        broken.add("y")
        assert await env.run(parent, "y") == ["task_failed", "y"]
    assert ran == {"x": 2, "y": 2}


async def test_a_flow_starts_code_and_another_flow() -> None:
    async with TestEnv() as env:
        await env.deploy(LEAF)
        await env.deploy("""
flow: engflow-both
tasks:
  leaf: {flow: engflow-leaf, with: {name: "${ input.name }"}}
  code: {flow: engflow_code, depends_on: leaf, with: {name: "${ leaf.said }", times: 3}}
  offered: {flow: engflow-leaf, depends_on: code}
output: {code: "${ code }", offered: "${ offered.said }"}
""")
        env.client.serve(code)
        await env.client.engine.refresh()
        handle = await env.start(flow("engflow-both"), name="a")
        assert await until_ended(env, handle) == "success"
        assert await handle.result() == {"code": "aaa", "offered": "a"}
        kinds = [(await c.describe()).version.startswith("flow-") for c in await children(env, handle)]
        assert kinds == [True, False, True]
    assert ran == {"a": 3}


async def test_a_child_that_nobody_knows_fails_its_node() -> None:
    async with TestEnv() as env:
        await env.deploy("""
flow: engflow-lost
tasks:
  sub: {flow: engflow-leaaf}
  tidy: {python: engflow_do, depends_on: sub, run_if: any_failed, with: {name: tidy}}
""")
        handle = await env.start(flow("engflow-lost"))
        with pytest.raises(RunFailed, match="engflow-leaaf") as failed:
            await handle.result("5s")
        assert failed.value.failure.code == "not_registered"
        assert ran == {"tidy": 1}
        with pytest.raises(NotRegistered):
            await env.start(flow("engflow-leaaf"))


async def test_cancelling_a_run_cancels_its_children_and_theirs() -> None:
    async with TestEnv() as env:
        await env.deploy("flow: engflow-sleeps\ntasks:\n  a: {sleep: 30d}")
        await env.deploy("flow: engflow-middle\ntasks:\n  a: {flow: engflow-sleeps}\n  b: {flow: engflow-sleeps}")
        await env.deploy("flow: engflow-top\ntasks:\n  a: {flow: engflow-middle}")
        handle = await env.start(flow("engflow-top"))
        (middle,) = await children(env, handle)
        leaves = await children(env, middle)
        assert len(leaves) == 2
        await handle.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result("5s")
        await env.advance("1s")
        assert [await h.status() for h in (middle, *leaves)] == ["cancelled"] * 3
        assert await rows(env, "select 1 from perdure.run_queue") == []


# -- retries -----------------------------------------------------------------------------------------------------------

CHAIN = """
flow: engflow-chain
tasks:
  first: {python: engflow_do, with: {name: first}}
  many: {python: engflow_do, retry: 1, depends_on: first, foreach: [a, b, c], on_error: collect, with: {name: "${ item }"}}
  last: {python: engflow_do, depends_on: many, with: {name: last}}
output: "${ many }"
"""


async def test_a_retry_keeps_what_succeeded() -> None:
    broken.update({"b", "c"})
    async with TestEnv() as env:
        await env.deploy(CHAIN)
        handle = await env.start(flow("engflow-chain"))
        assert await until_ended(env, handle) == "failed"
        broken.discard("b")
        await handle.retry()
        assert await until_ended(env, handle) == "failed"
        assert ran == {"first": 1, "a": 1, "b": 2, "c": 2}
        broken.discard("c")
        await handle.retry()
        assert await until_ended(env, handle) == "success"
        assert await handle.result() == ["a", "b", "c"]
    assert ran == {"first": 1, "a": 1, "b": 2, "c": 3, "last": 1}


async def test_a_retry_goes_on_with_a_failed_child_where_that_failed(dsn: str) -> None:
    broken.add("c")
    async with TestEnv(dsn) as env:
        await env.deploy(CHAIN)
        await env.deploy("""
flow: engflow-family
tasks:
  before: {python: engflow_do, with: {name: before}}
  each: {flow: engflow-chain, depends_on: before, parallel: 2, on_error: collect}
  after: {python: engflow_do, depends_on: each, with: {name: after}}
output: "${ each }"
""")
        handle = await env.start(flow("engflow-family"))
        assert await until_ended(env, handle) == "failed"
        assert ran == {"before": 1, "first": 2, "a": 2, "b": 2, "c": 2}
    broken.clear()
    async with TestEnv(dsn) as env:  # an engine that has never seen any of it
        again: Handle[Any] = await env.client.get(handle.id)
        await again.retry()
        assert await until_ended(env, again) == "success"
        assert await again.result() == [["a", "b", "c"], ["a", "b", "c"]]
        assert len(await children(env, again)) == 2, "none was started anew"
    assert ran == {"before": 1, "first": 2, "a": 2, "b": 2, "c": 4, "last": 2, "after": 1}
    assert not [t.examples for t in await verify(dsn, at_rest=True) if t.violations]


async def test_code_that_failed_as_a_child_of_a_flow_is_retried_with_it() -> None:
    broken.add("x")
    async with TestEnv() as env:
        await env.deploy("flow: engflow-oncode\ntasks:\n  sub: {flow: engflow_code, with: {name: x}}\noutput: ${ sub }")
        env.client.serve(code)
        await env.client.engine.refresh()
        handle = await env.start(flow("engflow-oncode"))
        assert await until_ended(env, handle) == "failed"
        broken.clear()
        await handle.retry()
        assert await until_ended(env, handle) == "success"
        assert await handle.result() == "x"
        assert len(await children(env, handle)) == 1


async def test_a_run_that_took_too_long_can_be_retried() -> None:
    async with TestEnv() as env:
        await env.deploy("""
flow: engflow-slow
tasks:
  first: {python: engflow_do, with: {name: first}}
  rest: {sleep: 3h, depends_on: first}
  last: {python: engflow_do, depends_on: rest, with: {name: last}}
""")
        handle = await env.start(flow("engflow-slow").options(timeout="1h"))
        await env.advance("2h")
        with pytest.raises(RunFailed) as failed:
            await handle.result("5s")
        assert failed.value.failure.code == "run_timeout"
        await handle.retry()
        await env.advance("2h")
        assert await handle.status() == "running", "the sleep starts over"
        await env.advance("2h")
        assert await handle.result("5s") == {"last": "last"}
    assert ran == {"first": 1, "last": 1}


# -- what is in the database -------------------------------------------------------------------------------------------


async def test_rows_of_tasks_carry_their_nodes_and_skipped_ones_are_there() -> None:
    broken.add("b")
    async with TestEnv() as env:
        await env.deploy("""
flow: engflow-rows
tasks:
  pick: {choice: [{when: input.yes, then: chosen}, {else: other}]}
  chosen: {python: engflow_do, with: {name: chosen}}
  other: {python: engflow_do, with: {name: other}}
  each: {python: engflow_do, retry: 1, foreach: [a, b], on_error: collect, with: {name: "${ item }"}}
  below: {python: engflow_do, depends_on: each, with: {name: below}}
  body:
    tasks:
      inner: {python: engflow_do, with: {name: inner}}
      outer: {when: "false", python: engflow_do, with: {name: outer}}
""")
        handle = await env.start(flow("engflow-rows"), yes=True)
        assert await until_ended(env, handle) == "failed"
        found = await rows(env, "select node, name, status, attempts, error from perdure.task order by seq")
        states = {r["node"]: r["status"] for r in found}
        assert states == {
            "chosen": "success",
            "other": "skipped",
            "each[0]": "success",
            "each[1]": "failed",
            "below": "skipped",
            "body.inner": "success",
            "body.outer": "skipped",
        }
        assert {r["name"] for r in found if r["status"] != "skipped"} == {"engflow_do"}
        why = {r["node"]: r["error"] for r in found if r["status"] == "skipped"}
        assert "not chosen" in why["other"] and "each" in why["below"] and why["body.outer"]
        assert {r["attempts"] for r in found if r["status"] == "skipped"} == {0}
        broken.clear()
        await handle.retry()
        assert await until_ended(env, handle) == "success"
        found = await rows(env, "select node, status from perdure.task order by seq")
        last = {r["node"]: r["status"] for r in found}
        assert (last["each[1]"], last["below"], last["other"]) == ("success", "success", "skipped")
    assert ran == {"chosen": 1, "a": 1, "b": 2, "inner": 1, "below": 1}


async def test_a_task_that_waits_has_its_node_in_the_queue() -> None:
    async with TestEnv() as env:
        await env.deploy("flow: engflow-nobody\ntasks:\n  wait: {python: engflow_nobody_has_this}")
        handle = await env.start(flow("engflow-nobody"))
        (row,) = await rows(env, "select node, name from perdure.task_queue")
        assert (row["node"], row["name"]) == ("wait", "engflow_nobody_has_this")
        await handle.cancel()


async def test_the_state_of_a_flow_is_readable_while_it_runs_and_afterwards() -> None:
    n, seen = State("n", 0), State[dict[str, Any]]("seen", {})
    go = Signal("go", int)
    async with TestEnv() as env:
        await env.deploy("""
flow: engflow-state
state: {n: 0}
graph:
  start: wait
  nodes:
    wait: {wait: go, set: {n: "${ shared.n + output }", seen.last: "${ output }"}}
    more: {choice: [{when: shared.n < 10, then: wait}]}
  edges:
    - {from: wait, to: more}
""")
        handle = await env.start(flow("engflow-state"))
        for sent, sum_ in ((3, 3), (4, 7)):
            await go.send(handle.id, sent)
            await env.advance("1s")
            assert await n.read(handle.id) == sum_
            assert await seen.read(handle.id) == {"last": sent}
        assert await handle.status() == "running"
        await go.send(handle.id, 5)
        assert await handle.result("5s") == {"n": 12, "seen": {"last": 5}}
        assert await n.read(handle.id) == 12
        names = await rows(env, "select name from perdure.run_state order by name")
        assert [r["name"] for r in names] == ["n", "seen"]


# -- company -----------------------------------------------------------------------------------------------------------


SHARED = """
flow: engflow-shared
tasks:
  one: {python: engflow_do, with: {name: "${ input.name }"}}
  rest: {sleep: 0.05, depends_on: one}
  two: {flow: engflow-leaf, depends_on: rest, with: {name: "${ one }"}}
output: "${ two.said }"
"""


@pytest.mark.parametrize("worker", [True, False], ids=["two workers", "one worker"])
async def test_two_engines_share_the_runs_of_flows(dsn: str, worker: bool) -> None:
    """Neither has room for its own, so each takes what the other cannot hold. A flow needs an engine to decide it, and no worker there."""
    small = EngineSettings(runs_max=4)
    async with Perdure(dsn, settings=small) as a, Perdure(dsn, worker=worker, settings=small) as b:
        await a.deploy(LEAF)
        await a.deploy(SHARED)
        async with asyncio.timeout(120):
            handles = [await (a, b)[i % 2].start(flow("engflow-shared", str), name=f"n{i}") for i in range(40)]
            assert await asyncio.gather(*(h.result() for h in handles)) == [f"n{i}" for i in range(40)]
        ended = [one.engine.counters.runs_ended for one in (a, b)]
        assert sum(ended) == 80
        assert a.engine.counters.activations and b.engine.counters.activations
        assert not worker or all(ended)
    assert ran == {f"n{i}": 2 for i in range(40)}
    assert not [t.examples for t in await verify(dsn, at_rest=True) if t.violations]


async def test_a_deployment_elsewhere_is_seen_within_a_moment(dsn: str) -> None:
    async with Perdure(dsn) as a, Perdure(dsn) as b:
        await a.deploy(dated("one", "0.01"))
        assert await (await b.start(flow("engflow-dated", str))).result("10s") == "one"
        await a.deploy(dated("two", "0.01"))

        async def runs_the_second() -> bool:
            return await (await b.start(flow("engflow-dated", str))).result("10s") == "two"

        await until(runs_the_second, within_s=5)  # what was read once is trusted for a second
