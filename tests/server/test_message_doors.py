"""A message that the code of a run cannot read is refused before it is written, in the same words at every door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, Promise, Signal, Update, workflow
from perdure.core import ids
from perdure.core.api import messages as acts
from perdure.core.api.messages import ResolvePromise, SendSignal
from perdure.errors import InvalidInput, LimitReached, PayloadMismatch, UpdateRejected
from perdure.sdk.message_registry import messages
from tests.cli.live import Cli
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live

LIMIT = 60


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process define messages too."""
    monkeypatch.setattr(messages, "_names", {})
    monkeypatch.setattr(messages, "_encoded", {})


shipped: Signal[dict[str, int]]
cancel_order: Signal[str]
answer: Promise[int]
rename: Update[str, str]


@workflow(name="md_order")
async def order() -> list[Any]:
    rename.handle(lambda name: name.upper())
    parcel = await shipped.next()
    return [parcel, await answer.wait()]


@workflow(name="md_open")
async def opened(n: int) -> str:
    return await Signal(f"md_word_{n}", str).next()


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    global shipped, cancel_order, answer, rename
    shipped, cancel_order = Signal("shipped", dict), Signal("cancel_order", str)
    answer, rename = Promise("answer", int), Update("rename", str, str)
    async with live(dsn) as one:
        for w in (order, opened):
            one.perdure.serve(w)
        await one.perdure.engine.refresh()
        yield one


MISFIT = "signal 'shipped' does not fit its type: the value must be object, not string. Send a value that fits."


def unknown(run: str) -> str:
    return f"run {run} has no signal 'shiped'. Did you mean 'shipped'? It reads cancel_order, shipped."


async def _doors(api: Live, dsn: str, tmp_path: Any, run: str, name: str, value: str) -> list[str]:
    """What each door says to the same signal."""
    said = [(await api.post(f"/runs/{run}/signals/{name}", json.loads(value), 422))["detail"]]
    with pytest.raises(InvalidInput) as embedded:
        await api.perdure._backend.call(acts.SIGNAL, SendSignal(run, name, value.encode()))
    said.append(str(embedded.value))
    done = await asyncio.to_thread(Cli(api.url, tmp_path), "signal", run, name, value)
    assert done.code == 2
    said.append(" ".join(done.err.split()))
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"select perdure.signal('{run}'::uuid, '{name}', '{value}')")
        await until(lambda: connection.fetchval("select error from perdure.sql_request"))
        said.append(await connection.fetchval("select error from perdure.sql_request"))
        await connection.execute("delete from perdure.sql_request")
    finally:
        await connection.close()
    return said


async def test_a_misspelled_signal_and_a_wrong_value_are_refused_in_the_same_words_at_every_door(
    api: Live, dsn: str, tmp_path: Any
) -> None:
    run = (await api.start("md_order"))["id"]
    for said in await _doors(api, dsn, tmp_path, run, "shiped", "{}"):
        assert unknown(run) in said
    for said in await _doors(api, dsn, tmp_path, run, "shipped", '"oops"'):
        assert MISFIT in said
    await api.post(f"/runs/{run}/signals/shipped", {"n": 1}, 202)
    await api.post(f"/runs/{run}/promises/answer", 7, 202)
    result = await api.get(f"/runs/{run}/result", wait=LIMIT)
    assert result["result"] == [{"n": 1}, 7], "what was refused was not written"


async def test_promises_and_updates_are_checked_too(api: Live) -> None:
    run = (await api.start("md_order"))["id"]
    backend = api.perdure._backend
    with pytest.raises(InvalidInput, match=r"has no promise 'anser'\. Did you mean 'answer'\? It reads answer\."):
        await backend.call(acts.RESOLVE, ResolvePromise(run, "anser", b"7"))
    with pytest.raises(PayloadMismatch, match="promise 'answer' does not fit its type: the value must be integer"):
        await backend.call(acts.RESOLVE, ResolvePromise(run, "answer", b'"7"'))
    with pytest.raises(UpdateRejected, match=r"has no update 'renmae'\. Did you mean 'rename'\?"):
        await Update("renmae", str, str).ask(run, "x")
    assert (await api.post(f"/runs/{run}/updates/rename", {"value": 1, "key": "k"}, 422))["code"] == "update_rejected"
    assert await rename.ask(run, "x", timeout=LIMIT) == "X"


async def test_a_link_takes_a_value_that_fits(api: Live) -> None:
    run = (await api.start("md_order"))["id"]
    await api.post(f"/runs/{run}/promises/anser/links", {}, 422)
    link = (await api.post(f"/runs/{run}/promises/answer/links", {}))["url"]
    path = link.removeprefix(api.url)
    refused = await api.http.post(f"{api.url}{path}", json={"value": "seven"}, headers={"accept": "application/json"})
    assert refused.status_code == 422 and "promise 'answer' does not fit its type" in refused.text
    taken = await api.http.post(f"{api.url}{path}", json={"value": 7}, headers={"accept": "application/json"})
    assert taken.status_code == 200, "the link was not used up"


async def test_a_signal_that_starts_a_run_is_checked_before_the_run_is_written(api: Live) -> None:
    body: dict[str, Any] = {"key": "md-1", "signal": "shiped", "value": {}}
    refused = await api.post("/workflows/md_order/signal-with-start", body, 422)
    assert "workflow md_order has no signal 'shiped'. Did you mean 'shipped'?" in refused["detail"]
    await api.get("/runs/key:md-1", 404)
    await api.post("/workflows/md_order/signal-with-start", body | {"signal": "cancel_order", "value": "no"})
    refused = await api.post("/workflows/md_order/signal-with-start", body | {"signal": "shipped", "value": 1}, 422)
    assert "must be object, not integer" in refused["detail"]


async def test_code_that_makes_names_while_it_runs_takes_any_name_and_still_checks_those_it_has(api: Live) -> None:
    run = (await api.start("md_open", input={"n": 3}))["id"]
    await api.post(f"/runs/{run}/signals/shipped", "oops", 422)
    await api.post(f"/runs/{run}/signals/md_word_3", "hello", 202)
    assert (await api.get(f"/runs/{run}/result", wait=LIMIT))["result"] == "hello"


@pytest.mark.parametrize("is_flow", [False, True], ids=["code", "flow"])
async def test_too_many_unread_signals_are_refused_to_the_sender_and_the_run_goes_on(
    api: Live, dsn: str, monkeypatch: pytest.MonkeyPatch, is_flow: bool
) -> None:
    monkeypatch.setattr("perdure.core.waits.SIGNALS_BUFFERED_MAX", 3)
    name = "md-full-flow" if is_flow else "md_order"
    flow = "flow: md-full-flow\ntasks:\n  go: {wait: shipped}\n  n: {depends_on: go, wait: cancel_order}"
    await api.perdure.deploy(flow)
    run = (await api.start(name))["id"]
    path = f"/runs/{run}/signals/cancel_order"
    for _ in range(3):
        await api.post(path, "no", 202)
    owned = await until(lambda: api.perdure.engine.runs.get(ids.parse(run)))
    await until(lambda: owned.full == ["cancel_order"])
    refused = await api.post(path, "no", 409)
    assert refused["code"] == "limit_reached"
    assert refused["detail"].startswith(f"run {run} has SIGNALS_BUFFERED_MAX=10000 unread signals 'cancel_order'. Send")
    connection = await asyncpg.connect(dsn)
    try:
        query = f"select full_signals from perdure.run_queue where run_id = '{run}'"
        await until(lambda: connection.fetchval(query))
    finally:
        await connection.close()
    async with Perdure(dsn, tune_gc=False) as other:
        with pytest.raises(LimitReached, match="unread signals 'cancel_order'"):
            await other._backend.call(acts.SIGNAL, SendSignal(run, "cancel_order", b'"no"'))
    await api.post(f"/runs/{run}/signals/shipped", {"n": 1}, 202)
    if is_flow:
        assert (await api.get(f"/runs/{run}/result", wait=LIMIT))["status"] == "success"
    else:
        await api.post(f"/runs/{run}/promises/answer", 7, 202)
        assert (await api.get(f"/runs/{run}/result", wait=LIMIT))["result"] == [{"n": 1}, 7]


async def test_a_flow_is_checked_for_the_names_of_its_document(api: Live) -> None:
    await api.perdure.deploy("flow: md-flow\ntasks:\n  paid: {wait: paid}\n  ok: {depends_on: paid, approval: ok}")
    await api.perdure.deploy(
        "flow: md-open-flow\ninput:\n  name: {type: string}\ntasks:\n  paid: {wait: '${ input.name }'}"
    )
    run = (await api.start("md-flow"))["id"]
    refused = await api.post(f"/runs/{run}/signals/payd", 1, 422)
    assert refused["detail"] == f"run {run} has no signal 'payd'. Did you mean 'paid'? It reads paid."
    await api.post(f"/runs/{run}/signals/paid", 1, 202)
    await api.post(f"/runs/{run}/promises/no", True, 422)
    await until(lambda: api.perdure.engine.runs.get(bytes.fromhex(run.replace("-", ""))))
    run = (await api.start("md-open-flow", input={"name": "x"}))["id"]
    await api.post(f"/runs/{run}/signals/x", 1, 202)


async def test_a_signal_for_the_version_that_will_continue_a_run_is_taken(dsn: str) -> None:
    """The run began with the version before, which no worker serves any more."""
    before = Signal("md_before", str)

    @workflow(name="md_moves", version="1")
    async def moves() -> str:
        return await before.next()

    async with Perdure(dsn, tune_gc=False) as client:
        client.serve(moves)
        await client.engine.refresh()
        run = (await client.start(moves)).id
        with pytest.raises(InvalidInput, match="has no signal 'md_after'"):
            await client._backend.call(acts.SIGNAL, SendSignal(run, "md_after", b'"a"'))
    after = Signal("md_after", str)

    @workflow(name="md_moves", version="2")
    async def moved() -> str:
        return await after.next() + await before.next()

    async with Perdure(dsn, tune_gc=False) as client:
        client.serve(moved)
        await client.engine.refresh()
        await client._backend.call(acts.SIGNAL, SendSignal(run, "md_after", b'"a"'))
        await client._backend.call(acts.SIGNAL, SendSignal(run, "md_before", b'"b"'))
        with pytest.raises(InvalidInput, match="has no signal 'md_other'"):
            await client._backend.call(acts.SIGNAL, SendSignal(run, "md_other", b'"c"'))
