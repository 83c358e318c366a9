"""Dead letters over REST: what is one, filters, pages, and the retry of many runs at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import task, workflow
from perdure.cli.run_tree import useful_next
from perdure.errors import ChildFailed, TaskFailed
from tests.server.rest_live import Live, live

broken: set[str] = {"pay", "ship"}
executed: list[str] = []


@pytest.fixture(autouse=True)
def clean_slate() -> None:
    broken.update({"pay", "ship"})
    executed.clear()


@task(name="dl_pay", retry=1)
async def pay(order: str) -> str:
    executed.append(f"pay {order}")
    if "pay" in broken:
        raise ValueError(f"no money for {order}")
    return f"paid {order}"


@task(name="dl_ship", retry=1, queue="dl_docks")
async def ship(order: str) -> str:
    executed.append(f"ship {order}")
    if "ship" in broken:
        raise ConnectionError(f"no ship for {order}")
    return f"shipped {order}"


@workflow(name="dl_order")
async def order(name: str) -> str:
    return await pay(name)


@workflow(name="dl_cargo")
async def cargo(name: str) -> str:
    return await ship(name)


@workflow(name="dl_tolerant")
async def tolerant(name: str) -> str:
    try:
        return await pay(name)
    except TaskFailed:
        return "never mind"


@workflow(name="dl_parent")
async def parent(name: str) -> str:
    return await order(name)


@task(name="dl_refund")
async def refund(order: str, *, result: str) -> None:
    executed.append(f"refund {order}")


@task(name="dl_charge", undo=refund)
async def charge(order: str) -> str:
    return f"charged {order}"


@workflow(name="dl_sale")
async def sale(name: str) -> str:
    await charge(name)
    return await ship(name)


@workflow(name="dl_forgiving")
async def forgiving(name: str) -> str:
    try:
        return await order(name)
    except ChildFailed:
        return "never mind"


@pytest.fixture
async def rest(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as server:
        for one in (order, cargo, tolerant, parent, forgiving, sale):
            server.perdure._backend.adopt(one)
        await server.perdure.engine.refresh()
        yield server


async def listed(rest: Live, **params: Any) -> list[dict[str, Any]]:
    page = await rest.get("/dead-letters", **params)
    items: list[dict[str, Any]] = page["items"]
    return items


async def ended(rest: Live, *runs: dict[str, Any]) -> list[str]:
    results = [await rest.get(f"/runs/{run['run_id']}/result", wait=60) for run in runs]
    return [r["status"] for r in results]


async def test_a_dead_letter_tells_what_failed_where_and_why(rest: Live) -> None:
    assert await listed(rest) == []
    run = await rest.ended("dl_cargo", kwargs={"name": "tea"})
    (letter,) = await listed(rest)
    assert letter["run_id"] == run["id"] and letter["url"] == run["url"]
    assert (letter["workflow"], letter["task"], letter["queue"], letter["seq"]) == (
        "dl_cargo",
        "dl_ship",
        "dl_docks",
        0,
    )
    assert letter["attempts"] == 1 and letter["error"] == "no ship for tea"
    assert letter["scheduled_at"] <= letter["failed_at"] <= run["finished_at"]
    assert letter["parent_id"] is None and letter["node"] is None


async def test_a_failure_that_was_caught_is_no_dead_letter(rest: Live) -> None:
    await rest.ended("dl_tolerant", kwargs={"name": "tea"})
    assert await listed(rest) == []
    await rest.ended("dl_forgiving", kwargs={"name": "tea"})
    assert [d["workflow"] for d in await listed(rest)] == ["dl_order"], "the child itself has failed"


async def test_filters_narrow_the_list_and_pages_cover_it(rest: Live) -> None:
    for n in range(5):
        await rest.ended("dl_order", kwargs={"name": f"o{n}"})
    for n in range(2):
        await rest.ended("dl_cargo", kwargs={"name": f"c{n}"})
    everything = await listed(rest)
    assert [d["error"][-2:] for d in everything] == ["c1", "c0", "o4", "o3", "o2", "o1", "o0"], "newest first"
    for params, count in (
        ({"workflow": "dl_order"}, 5),
        ({"queue": "dl_docks"}, 2),
        ({"task": "dl_ship"}, 2),
        ({"q": "FOR O3"}, 1),
        ({"q": "%"}, 0),
        ({"since": "1h"}, 7),
        ({"until": "1h"}, 0),
        ({"since": everything[2]["failed_at"]}, 3),
        ({"until": everything[2]["failed_at"]}, 4),
        ({"workflow": "dl_order", "queue": "dl_docks"}, 0),
    ):
        assert len(await listed(rest, **params)) == count, params
    seen, cursor = [], None
    while True:
        page = await rest.get("/dead-letters", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [d["id"] for d in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [d["id"] for d in everything]
    await rest.get("/dead-letters", 422, cursor="nonsense!")


async def test_a_dry_run_says_what_a_retry_then_does(rest: Live) -> None:
    for n in range(3):
        await rest.ended("dl_order", kwargs={"name": f"o{n}"})
    await rest.ended("dl_cargo", kwargs={"name": "c"})
    dry = await rest.post("/dead-letters/retry", {"workflow": "dl_order", "dry_run": True}, 200)
    assert [r["outcome"] for r in dry["items"]] == ["would_retry"] * 3 and len(executed) == 4
    broken.discard("pay")
    done = await rest.post("/dead-letters/retry", {"workflow": "dl_order", "since": "1h"}, 200)
    assert [(r["run_id"], r["outcome"]) for r in done["items"]] == [(r["run_id"], "retried") for r in dry["items"]]
    assert await ended(rest, *done["items"]) == ["success"] * 3
    assert [d["workflow"] for d in await listed(rest)] == ["dl_cargo"], "what was retried is dead no more"
    again = await rest.post("/dead-letters/retry", {"workflow": "dl_order"}, 200)
    assert again["items"] == []
    audited = [a for a in (await rest.get("/audit"))["items"] if a["action"] == "run.retry"]
    assert {a["target"] for a in audited} == {r["run_id"] for r in done["items"]}


async def test_a_run_that_has_undone_its_work_is_not_offered_for_retry(rest: Live) -> None:
    run = await rest.ended("dl_sale", kwargs={"name": "tea"})
    assert run["status"] == "failed" and "refund tea" in executed
    dry = await rest.post("/dead-letters/retry", {"runs": [run["id"]], "dry_run": True}, 200)
    real = await rest.post("/dead-letters/retry", {"runs": [run["id"]]}, 200)
    assert dry == real and real["items"][0]["outcome"] == "refused"
    assert run["retry_refused"] == real["items"][0]["reason"]
    assert not any("perdure retry" in line for line in useful_next(run))
    assert any("cannot be retried" in line for line in useful_next(run))


async def test_a_failed_run_is_offered_for_retry(rest: Live) -> None:
    run = await rest.ended("dl_order", kwargs={"name": "tea"})
    assert run["retry_refused"] is None and f"perdure retry {run['id']}" in useful_next(run)
    fine = await rest.ended("rest_sum", args=[1, 2])
    dry = await rest.post("/dead-letters/retry", {"runs": [fine["id"]], "dry_run": True}, 200)
    assert dry["items"][0]["outcome"] == "refused" and fine["retry_refused"] is None


async def test_runs_are_named_or_found_and_refusals_do_not_stop_the_rest(rest: Live) -> None:
    dead = await rest.ended("dl_order", kwargs={"name": "a"})
    fine = await rest.ended("rest_sum", args=[1, 2])
    broken.discard("pay")
    done = await rest.post("/dead-letters/retry", {"runs": [fine["id"], dead["id"]]}, 200)
    first, second = done["items"]
    assert (first["run_id"], first["outcome"]) == (fine["id"], "refused") and "only failed runs" in first["reason"]
    assert (second["run_id"], second["outcome"], second["reason"]) == (dead["id"], "retried", None)
    await rest.post("/dead-letters/retry", {"runs": [dead["id"]], "workflow": "dl_order"}, 422)
    await rest.post("/dead-letters/retry", {"runs": ["0192a6f0-5c1e-7000-8123-0123456789ab"]}, 404)
    await rest.post("/dead-letters/retry", {"limit": 101}, 422)


async def test_pages_of_a_retry_go_on_below_what_stays_dead(rest: Live) -> None:
    for n in range(4):
        await rest.ended("dl_order", kwargs={"name": f"o{n}"})
    seen: list[str] = []
    cursor = None
    for _ in range(5):
        body = {"limit": 1, **({"cursor": cursor} if cursor else {})}
        page = await rest.post("/dead-letters/retry", body, 200)
        await ended(rest, *page["items"])  # each fails again, at the head of the list
        seen += [r["run_id"] for r in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert cursor is None and len(seen) == len(set(seen)) == 4


async def test_a_child_is_retried_by_way_of_its_parent_once(rest: Live) -> None:
    run = await rest.ended("dl_parent", kwargs={"name": "a"})
    (letter,) = await listed(rest)
    assert letter["workflow"] == "dl_order" and letter["parent_id"] == run["id"]
    broken.discard("pay")
    done = await rest.post("/dead-letters/retry", {}, 200)
    assert [(r["run_id"], r["outcome"]) for r in done["items"]] == [(run["id"], "retried")]
    assert await ended(rest, *done["items"]) == ["success"]
    assert await listed(rest) == [] and executed == ["pay a", "pay a"]


async def test_two_who_retry_at_once_retry_each_run_once(rest: Live) -> None:
    for n in range(6):
        await rest.ended("dl_order", kwargs={"name": f"o{n}"})
    broken.discard("pay")
    pages = await asyncio.gather(*(rest.post("/dead-letters/retry", {}, 200) for _ in range(3)))
    retried = [r["run_id"] for page in pages for r in page["items"] if r["outcome"] == "retried"]
    assert len(retried) == len(set(retried)) == 6
    refused = [r["reason"] for page in pages for r in page["items"] if r["outcome"] == "refused"]
    assert all("only failed runs" in why or "another request" in why for why in refused)
    assert await ended(rest, *({"run_id": r} for r in retried)) == ["success"] * 6
