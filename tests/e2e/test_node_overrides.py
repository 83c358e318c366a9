"""Failed nodes of flows are rerun, skipped or set by hand, and runs of flows are forked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Handle, Perdure, Retry, flow, task
from perdure.core import events as ev
from perdure.errors import Conflict, RunFailed
from perdure.store.verify import verify
from tests.e2e.test_flow_sdk import deploy

executed: Counter[str] = Counter()
broken: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    executed.clear()
    broken.clear()
    yield


@task(name="node_do", retry=Retry(1))
async def do(name: str) -> dict[str, Any]:
    executed[name] += 1
    if name in broken:
        raise ValueError(f"{name} is broken")
    return {"name": name}


def call(name: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"python": "node_do", "with": {"name": name}, **({"depends_on": list(after)} if after else {}), **more}


DAG: dict[str, Any] = {
    "flow": "node-dag",
    "tasks": {
        "first": call("first"),
        "load": call("load", "first"),
        "other": call("other", "first"),
        "then": {"python": "node_do", "with": {"name": "then ${load.name}"}, "depends_on": ["load"]},
        "tidy": call("tidy", "then", run_if="none_failed"),
    },
    "output": {"load": "${load}", "then": "${then}"},
}
SPREAD: dict[str, Any] = {
    "flow": "node-spread",
    "tasks": {
        "each": {"python": "node_do", "with": {"name": "item ${item}"}, "foreach": "${input.items}"},
        "then": call("then", "each"),
    },
    "output": "${each}",
}
GRAPH: dict[str, Any] = {
    "flow": "node-graph",
    "graph": {
        "start": "load",
        "nodes": {
            "load": {"python": "node_do", "with": {"name": "load"}},
            "store": {"python": "node_do", "with": {"name": "store ${ input }"}},
        },
        "edges": [{"from": "load", "to": "store"}],
    },
}


async def failed(client: Perdure, document: dict[str, Any], match: str, **given: Any) -> Handle[Any]:
    await deploy(client.store.pool.dsn, client.engine.ns, document)
    handle = await client.start(flow(document["flow"]), **given)
    with pytest.raises(RunFailed, match=match):
        await handle.result("3m")
    return handle


async def events(handle: Handle[Any]) -> list[ev.Event]:
    return [r.event for r in await handle.history()]


async def clean(dsn: str) -> None:
    tallies = await verify(dsn)
    assert {t.number: [e.what for e in t.examples] for t in tallies if t.violations} == {}


async def test_a_node_that_is_set_has_its_value_and_the_rest_goes_on(dsn: str) -> None:
    broken.add("load")
    async with Perdure(dsn) as client:
        handle = await failed(client, DAG, "load is broken")
        await handle.override_node("load", "set", {"name": "by hand"})
        assert await handle.result("3m") == {"load": {"name": "by hand"}, "then": {"name": "then by hand"}}
        assert executed == {"first": 1, "load": 1, "other": 1, "then by hand": 1, "tidy": 1}
        decided = next(e for e in await events(handle) if isinstance(e, ev.NodeOverridden))
        assert (decided.node, decided.how, decided.by) == ("load", "set", "embedded")
    await clean(dsn)


async def test_a_node_that_is_skipped_is_skipped_as_the_flow_says(dsn: str) -> None:
    broken.add("load")
    async with Perdure(dsn) as client:
        handle = await failed(client, DAG, "load is broken")
        await handle.override_node("load", "skip")
        await handle.result("3m")
        assert executed == {"first": 1, "load": 1, "other": 1}
        skipped = [(n, e.reason) for e in await events(handle) if isinstance(e, ev.TasksSkipped) for n in e.nodes]
        assert skipped[-3:] == [
            ("load", "skipped by an operator"),
            ("then", "load was skipped"),
            ("tidy", "then was skipped"),
        ]
    await clean(dsn)


async def test_a_node_that_is_rerun_begins_anew_also_with_what_succeeded_in_it(dsn: str) -> None:
    broken.add("item 2")
    async with Perdure(dsn) as client:
        handle = await failed(client, SPREAD, "item 2 is broken", items=[1, 2, 3])
        broken.clear()
        await handle.override_node("each", "rerun")
        assert [r["name"] for r in await handle.result("3m")] == ["item 1", "item 2", "item 3"]
        assert executed["item 2"] == executed["item 1"] == 2
    await clean(dsn)


@pytest.mark.parametrize(("how", "value", "expected"), [("set", {"x": 1}, {"x": 1}), ("skip", None, None)])
async def test_one_item_of_a_spread_is_decided_by_hand(dsn: str, how: Any, value: Any, expected: Any) -> None:
    broken.add("item 2")
    async with Perdure(dsn) as client:
        handle = await failed(client, SPREAD, "item 2 is broken", items=[1, 2, 3])
        await handle.override_node("each[1]", how, value)
        assert (await handle.result("3m"))[1] == expected
        assert executed["item 2"] == 1
    await clean(dsn)


@pytest.mark.parametrize(("how", "value", "stored"), [("set", 7, "store 7"), ("skip", None, "store ")])
async def test_a_graph_moves_on_from_a_node_that_was_decided_by_hand(
    dsn: str, how: Any, value: Any, stored: str
) -> None:
    broken.add("load")
    async with Perdure(dsn) as client:
        handle = await failed(client, GRAPH, "load is broken")
        await handle.override_node("load", how, value)
        await handle.result("3m")
        assert executed["load"] == 1
        assert [n for n in executed if n.startswith("store")] == [stored]
    await clean(dsn)


async def test_a_node_of_a_graph_is_rerun(dsn: str) -> None:
    broken.add("load")
    async with Perdure(dsn) as client:
        handle = await failed(client, GRAPH, "load is broken")
        broken.clear()
        await handle.override_node("load", "rerun")
        await handle.result("3m")
        assert executed["load"] == 2
    await clean(dsn)


async def test_decisions_survive_a_replay_and_a_second_failure(dsn: str) -> None:
    """Another engine takes over between the two retries: the decider is built anew from the history."""
    broken.update({"load", "then by hand"})
    async with Perdure(dsn) as client:
        handle = await failed(client, DAG, "load is broken")
        await handle.override_node("load", "set", {"name": "by hand"})
        with pytest.raises(RunFailed, match="then by hand is broken"):
            await handle.result("3m")
    broken.clear()
    async with Perdure(dsn) as client:
        again: Handle[Any] = await client.get(handle.id)
        await again.retry()
        assert (await again.result("3m"))["load"] == {"name": "by hand"}
        assert executed["load"] == 1
        assert executed["then by hand"] == 2
    await clean(dsn)


async def test_a_node_that_did_not_fail_is_refused(dsn: str) -> None:
    broken.add("load")
    async with Perdure(dsn) as client:
        handle = await failed(client, DAG, "load is broken")
        with pytest.raises(Conflict, match="'first' has not failed: it is success. Nodes that failed: load"):
            await handle.override_node("first", "skip")
        with pytest.raises(Conflict, match="no node 'nothing'"):
            await handle.override_node("nothing", "skip")


async def test_a_fork_of_a_flow_with_an_edited_node_succeeds(dsn: str) -> None:
    broken.add("load")
    async with Perdure(dsn) as client:
        handle = await failed(client, DAG, "load is broken")
        history = await handle.history()
        for at in range(1, history[-1].seq + 1):
            forked = await handle.fork(at)
            with pytest.raises(RunFailed, match="load is broken"):
                await forked.result("3m")
        forked = await handle.fork(history[-1].seq, {"load": {"name": "edited"}})
        assert (await forked.result("3m"))["then"] == {"name": "then edited"}
        assert await handle.status() == "failed"
        await handle.override_node("load", "set", {"name": "by hand"})
        await handle.result("3m")
        whole = await handle.history()
        for at in range(history[-1].seq, whole[-1].seq + 1):
            forked = await handle.fork(at)
            if at > history[-1].seq + 1:  # behind the retry
                assert (await forked.result("3m"))["load"] == {"name": "by hand"}
    await clean(dsn)
