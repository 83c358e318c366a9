"""A message that the code of a run cannot read is refused before it is written, in the same words at every door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Approval, Perdure, Promise, Signal, Update, workflow
from perdure.core import ids
from perdure.core.api import messages as acts
from perdure.core.api.messages import ResolvePromise, SendSignal
from perdure.core.limits import MESSAGES_PENDING_MAX
from perdure.errors import InvalidInput, LimitReached, PayloadMismatch, PerdureError, UpdateRejected
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
sign_off: Approval


@workflow(name="md_order")
async def order() -> list[Any]:
    rename.handle(lambda name: name.upper())
    parcel = await shipped.next()
    return [parcel, await answer.wait()]


@workflow(name="md_asks")
async def asks() -> list[Any]:
    rename.handle(lambda name: name.upper())
    await sign_off.wait()
    return [await answer.wait(), await shipped.next()]


@workflow(name="md_open")
async def opened(n: int) -> str:
    return await Signal(f"md_word_{n}", str).next()


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    global shipped, cancel_order, answer, rename, sign_off
    shipped, cancel_order = Signal("shipped", dict), Signal("cancel_order", str)
    answer, rename, sign_off = Promise("answer", int), Update("rename", str, str), Approval("sign_off")
    async with live(dsn) as one:
        for w in (order, asks, opened):
            one.perdure.serve(w)
        await one.perdure.engine.refresh()
        yield one


MISFIT = "signal 'shipped' does not fit its type: the value must be object, not string. Send a value that fits."


def unknown(run: str) -> str:
    return f"run {run} has no signal 'shiped'. Did you mean 'shipped'? It reads cancel_order, shipped."


async def _doors(
    api: Live, sql: Any, tmp_path: Any, run: str, name: str, value: str, expected: type[PerdureError]
) -> dict[str, str]:
    """What each door answers the same signal, or none of them takes it."""
    path, given, status, said = f"/runs/{run}/signals/{name}", json.loads(value), expected.http_status, {}
    for door, url, headers in (
        ("REST", path, {}),
        ("REST, key", f"{path}?key=md-1", {}),
        ("REST, Idempotency-Key", path, {"Idempotency_Key": "md-1"}),
    ):
        refused = await api.post(url, given, status, **headers)
        assert refused["code"] == expected.code, door
        said[door] = refused["detail"]
    with pytest.raises(expected) as embedded:
        await api.perdure._backend.call(acts.SIGNAL, SendSignal(run, name, value.encode()))
    said["embedded"] = str(embedded.value)
    done = await asyncio.to_thread(Cli(api.url, tmp_path), "signal", run, name, value)
    assert done.code == expected.exit_code
    said["command line"] = " ".join(done.err.split())
    await sql.execute(f"select perdure.signal('{run}'::uuid, '{name}', '{value}')")
    said["SQL"] = await until(lambda: sql.fetchval("select error from perdure.sql_request"))
    await sql.execute("delete from perdure.sql_request")
    body = {"action": "signal", "query": f"id = {run}", "signal": name, "payload": given}
    job = (await api.post("/bulk-jobs", body, 202))["id"]
    (outcome,) = await until(lambda: _bulk_runs(api, job))
    assert outcome["outcome"] == "failed"
    said["bulk job"] = outcome["message"]
    return said


async def _bulk_runs(api: Live, job: str) -> Any:
    return (await api.get(f"/bulk-jobs/{job}/runs", outcome="failed"))["items"]


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def test_a_misspelled_signal_and_a_wrong_value_are_refused_in_the_same_words_at_every_door(
    api: Live, sql: Any, tmp_path: Any
) -> None:
    run = (await api.start("md_order"))["id"]
    for door, said in (await _doors(api, sql, tmp_path, run, "shiped", "{}", InvalidInput)).items():
        assert unknown(run) in said, door
    for door, said in (await _doors(api, sql, tmp_path, run, "shipped", '"oops"', PayloadMismatch)).items():
        assert MISFIT in said, door
    await api.post(f"/runs/{run}/signals/shipped", {"n": 1}, 202)
    await api.post(f"/runs/{run}/promises/answer", 7, 202)
    result = await api.get(f"/runs/{run}/result", wait=LIMIT)
    assert result["result"] == [{"n": 1}, 7], "what was refused was not written"


async def test_ended_run_refuses_each_message_in_the_same_words(api: Live) -> None:
    run = (await api.start("md_order"))["id"]
    await api.post(f"/runs/{run}/cancel", {}, 202)
    await api.get(f"/runs/{run}/result", wait=LIMIT)
    path = f"/runs/{run}/signals/shipped"
    said = [
        await api.post(path, {}, 409),
        await api.post(path, {}, 409, Idempotency_Key="k"),
        await api.post(f"/runs/{run}/promises/answer", 7, 409),
        await api.post(f"/runs/{run}/promises/answer/links", {}, 409),
        await api.post(f"/runs/{run}/updates/rename", {"value": "x", "key": "k"}, 409),
        await api.post(f"/approvals/{run}/sign_off/approve", {}, 409),
    ]
    assert {(s["code"], s["detail"]) for s in said} == {
        ("run_finished", f"run {run} has ended and takes no more messages")
    }


async def test_promises_and_updates_are_checked_too(api: Live) -> None:
    run = (await api.start("md_order"))["id"]
    backend = api.perdure._backend
    with pytest.raises(
        InvalidInput, match=r"has no promise 'anser'\. Did you mean 'answer'\? It reads answer, sign_off\."
    ):
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
    api: Live, dsn: str, sql: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, is_flow: bool
) -> None:
    monkeypatch.setattr("perdure.core.waits.SIGNALS_BUFFERED_MAX", 3)
    name = "md-full-flow" if is_flow else "md_order"
    flow = "flow: md-full-flow\ntasks:\n  go: {wait: shipped}\n  n: {depends_on: go, wait: cancel_order}"
    await api.perdure.deploy(flow)
    run = (await api.start(name, key="md-full"))["id"]
    signal = SendSignal(run, "cancel_order", b'"no"')
    full = f"run {run} has SIGNALS_BUFFERED_MAX=10000 unread signals 'cancel_order'. Send more when its code has read half of them."
    async with Perdure(dsn, tune_gc=False) as other:
        for _ in range(3):
            await other._backend.call(acts.SIGNAL, signal)
        await until(lambda: sql.fetchval(f"select full_signals from perdure.run_queue where run_id = '{run}'"))
        with pytest.raises(LimitReached) as refused:
            await other._backend.call(acts.SIGNAL, signal)
        assert str(refused.value) == full, "an engine that had found it free a moment ago"
    for door, said in (await _doors(api, sql, tmp_path, run, "cancel_order", '"no"', LimitReached)).items():
        assert full in said, door
    body = {"key": "md-full", "signal": "cancel_order", "value": "no"}
    assert (await api.post(f"/workflows/{name}/signal-with-start", body, 409))["detail"] == full
    await api.post(f"/runs/{run}/signals/shipped", {"n": 1}, 202)
    if is_flow:
        assert (await api.get(f"/runs/{run}/result", wait=LIMIT))["status"] == "success"
    else:
        await api.post(f"/runs/{run}/promises/answer", 7, 202)
        assert (await api.get(f"/runs/{run}/result", wait=LIMIT))["result"] == [{"n": 1}, 7]


FULL = "select full_signals from perdure.run_queue"


async def _fill(dsn: str, sql: Any) -> tuple[Any, str]:
    """A run that has left three signals unread, and whose engine is gone."""
    word, go = Signal("md_takeover", int), Signal("md_takeover_go", str)
    Signal("md_takeover_wake", int)

    @workflow(name="md_takes_over")
    async def takes_over() -> list[int]:
        await go.next()
        read = [await word.next() for _ in range(2)]
        await go.next()
        return read

    async with Perdure(dsn, tune_gc=False) as first:
        first.serve(takes_over)
        await first.engine.refresh()
        run = (await first.start(takes_over)).id
        for n in range(3):
            await first._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover", str(n).encode()))
        await until(lambda: sql.fetchval(FULL))
    return takes_over, run


async def test_full_signal_stays_full_across_a_takeover(dsn: str, sql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.core.waits.SIGNALS_BUFFERED_MAX", 3)
    takes_over, run = await _fill(dsn, sql)
    async with Perdure(dsn, tune_gc=False) as second:
        second.serve(takes_over)
        await second.engine.refresh()
        await second._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover_wake", b"0"))
        await until(lambda: second.engine.runs.get(ids.parse(run)))
        assert await sql.fetchval(FULL) == '["md_takeover"]', "its history has not become shorter"
        with pytest.raises(LimitReached, match="unread signals 'md_takeover'"):
            await second._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover", b"3"))
        await second._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover_go", b'"x"'))
        await until(lambda: _is_free(sql, FULL))
        await second._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover", b"3"))


async def test_full_signal_is_free_when_an_engine_died_after_it_was_read(
    dsn: str, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the code reads is no event. So the history is that of a run that has read, and the row that of one that has not."""
    monkeypatch.setattr("perdure.core.waits.SIGNALS_BUFFERED_MAX", 3)
    takes_over, run = await _fill(dsn, sql)
    async with Perdure(dsn, tune_gc=False) as second:
        second.serve(takes_over)
        await second.engine.refresh()
        await second._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover_go", b'"x"'))
        await until(lambda: _is_free(sql, FULL))
    await sql.execute("update perdure.run_queue set full_signals = $1", '["md_takeover"]')
    async with Perdure(dsn, tune_gc=False) as third:
        third.serve(takes_over)
        await third.engine.refresh()
        await third._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover_wake", b"0"))
        await until(lambda: _is_free(sql, FULL), "the name is free", LIMIT)
        await third._backend.call(acts.SIGNAL, SendSignal(run, "md_takeover", b"3"))


async def _is_free(sql: Any, query: str) -> bool:
    return await sql.fetchval(query) == "[]"


async def test_full_inbox_of_paused_run_refuses_sender_in_the_same_words_at_every_door(
    api: Live, sql: Any, tmp_path: Any
) -> None:
    run = (await api.start("md_asks"))["id"]
    await until(lambda: sql.fetchval(f"select count(*) from perdure.promise where run_id = '{run}'"))
    link = (await api.post(f"/runs/{run}/promises/answer/links", {}))["url"]
    await api.post(f"/runs/{run}/pause", {}, 202)
    await until(lambda: sql.fetchval(f"select owner is null from perdure.run_queue where run_id = '{run}'"))
    await sql.execute(
        "insert into perdure.inbox (ns, run_id, body, kind, name) "
        f"select 1, '{run}', 'x', 'signal', 'shipped' from generate_series(1, {MESSAGES_PENDING_MAX})"
    )
    full = (
        f"run {run} has MESSAGES_PENDING_MAX=10000 unread messages and no engine executes it. Resume it if it is paused, or start a "
        "worker that serves it."
    )
    for door, said in (await _doors(api, sql, tmp_path, run, "shipped", "{}", LimitReached)).items():
        assert full in said, door
    for path, body in (
        (f"/runs/{run}/promises/answer", 7),
        (f"/runs/{run}/updates/rename", {"value": "x", "key": "k"}),
        (f"/approvals/{run}/sign_off/approve", {}),
    ):
        refused = await api.post(path, body, 409)
        assert (refused["code"], refused["detail"]) == ("limit_reached", full), path
    linked = link.removeprefix(api.url)
    for _ in range(2):
        refused = await api.http.post(f"{api.url}{linked}", json={"value": 7}, headers={"accept": "application/json"})
        assert (refused.status_code, refused.json()["detail"]) == (409, full), "a refusal does not use the link up"
    assert await sql.fetchval(f"select count(*) from perdure.inbox where run_id = '{run}'") == MESSAGES_PENDING_MAX
    assert await sql.fetchval(f"select count(*) from perdure.vote where run_id = '{run}'") == 0
    await sql.execute("delete from perdure.inbox where body = 'x'")
    await api.post(f"/approvals/{run}/sign_off/approve", {}, 200)
    taken = await api.http.post(f"{api.url}{linked}", json={"value": 7}, headers={"accept": "application/json"})
    assert taken.status_code == 200
    await api.post(f"/runs/{run}/signals/shipped", {"n": 1}, 202)
    await api.post(f"/runs/{run}/resume", None, 202)
    assert (await api.get(f"/runs/{run}/result", wait=LIMIT))["result"] == [7, {"n": 1}]


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
