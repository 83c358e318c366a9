"""Approvals over REST and gRPC, and the page that a link leads to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from perdure import Approval, Client, Promise, workflow
from perdure.app.api_ports import api_ports
from perdure.core.access import NewKey, Role
from perdure.core.errors import ApprovalClosed, Forbidden, LinkUsed, NotAssigned, RunFinished
from perdure.engine.api.api import Api
from perdure.engine.api.approvals import Links
from perdure.server.rest import approvals as rest
from perdure.server.rest.answer_form import fields_of, read_fields
from tests.fakes.waiting import until
from tests.server.remote import server as grpc_server
from tests.server.remote import worker
from tests.server.rest_live import Live, live

FLOW = """
flow: rest_ask
input: {title: {type: string}, people: {type: array}, name: {type: string, default: ask}}
tasks:
  ask:
    approval:
      name: "${ input.name }"
      title: "${ input.title }"
      description: It cannot be taken back.
      assignees: "${ input.people }"
      details: {rows: 3, note: "<b>bold</b>"}
      form:
        price: {type: integer, minimum: 1, title: Price in euros}
        size: {enum: [small, large], default: large}
        ratio: {type: number, required: false}
        urgent: {type: boolean, default: false}
        tags: {type: array, items: {type: string}, default: []}
"""


@pytest.fixture
async def one(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as found:
        await found.perdure.deploy(FLOW)
        yield found


async def asked(one: Live, **said: Any) -> str:
    """A run of the flow that waits; dev's own name may answer unless told."""
    given = {"title": "Publish?", "people": ["dev"]} | said
    run = await one.start("rest_ask", input=given)

    async def approvals() -> list[Any]:
        found: list[Any] = (await one.get("/approvals", run=run["id"]))["items"]
        return found

    await until(approvals)
    return str(run["id"])


def path(run: str, verb: str = "", name: str = "ask") -> str:
    return f"/approvals/{run}/{quote(name, safe='')}" + (f"/{verb}" if verb else "")


# -- REST ----------------------------------------------------------------------------------------------------------


async def test_what_was_decided_is_listed_after_its_run_has_ended(one: Live) -> None:
    run = await asked(one)
    assert (await one.get("/approvals", state="decided"))["items"] == []
    after = await one.post(path(run, "approve"), {"value": {"price": 3}, "comment": "go"}, 200)
    assert after["decided_at"] is not None

    async def over() -> bool:
        return bool((await one.get(f"/runs/{run}"))["finished_at"])

    await until(over)
    (found,) = (await one.get("/approvals", state="decided", decided_by="@me"))["items"]
    assert (found["run_id"], found["status"], found["title"]) == (run, "approved", "Publish?")
    assert (found["votes"][0]["who"], found["votes"][0]["comment"]) == ("dev", "go")
    assert found["decided_at"] >= found["votes"][0]["at"]
    assert (await one.get("/approvals", state="decided", decided_by="ada"))["items"] == []
    assert (await one.get("/approvals"))["items"] == []
    await one.ask("GET", "/approvals?state=other", 422)
    await one.ask("GET", "/approvals?decided_by=ada", 422)


async def test_an_approval_says_everything_that_people_need(one: Live) -> None:
    run = await asked(one)
    found = await one.get(path(run))
    assert (found["title"], found["status"], found["workflow"], found["answerers"]) == (
        "Publish?",
        "open",
        "rest_ask",
        ["dev"],
    )
    assert found["details"] == {"rows": 3, "note": "<b>bold</b>"}
    assert found["url"] == f"{one.url}/runs/{run}"
    after = await one.post(path(run, "approve"), {"value": {"price": 2}, "comment": "ok"}, 200)
    assert (after["status"], after["votes"][0]["comment"], after["votes"][0]["via"]) == ("approved", "ok", "rest")
    ended = await one.get(f"/runs/{run}/result", wait=60)
    assert ended["result"]["ask"]["value"] == {"price": 2, "size": "large", "urgent": False, "tags": []}


@pytest.mark.parametrize("name", ["a/b", "a#2", "a[0]", "a b", "ä", "approve", "x/approve", "a?b", "100%"])
async def test_any_name_can_be_addressed(one: Live, name: str) -> None:
    run = await asked(one, name=name)
    assert (await one.get(path(run, name=name)))["name"] == name
    assert (await one.post(path(run, "reject", name), {"comment": "no"}, 200))["status"] == "rejected"


async def test_what_is_wrong_has_its_own_code(one: Live) -> None:
    run = await asked(one)
    missing = await one.get(path(run, name="aks"), 404)
    assert missing["code"] == "not_found" and "open: ask" in missing["detail"]
    wrong = await one.post(path(run, "approve"), {"value": {"price": 0}}, 422)
    assert "value.price must be at least 1" in wrong["detail"]
    assert (await one.post(path(run, "approve"), {"valeu": 1}, 422))["code"] == "invalid_input"
    assert (await one.post(path(run, "approve"), {"comment": "x" * 1001}, 422))["code"] == "invalid_input"
    other = await one.post(path(run, "approve"), {"value": {"price": 1}, "as": "eve"}, 403)
    assert other["code"] == "not_assigned"
    for who in ("dev", ""):
        assert (await one.post(path(run, "delegate"), {"to": who}, 409 if who else 422))["status"] in (409, 422)
    assert (await one.post(path(run, "links"), {"who": "dev", "expires_in": "3000d"}, 422))["code"] == "invalid_input"
    assert (await one.post(path(run, "links"), {"who": "eve"}, 403))["code"] == "not_assigned"
    await one.post(path(run, "approve"), {"value": {"price": 1}}, 200)
    await one.get(f"/runs/{run}/result", wait=60)
    late = await one.post(path(run, "approve"), {"value": {"price": 1}}, 409)
    assert late["code"] == "run_finished"


async def test_the_inbox_is_paged_oldest_first_and_filtered(one: Live) -> None:
    runs = [await asked(one, people=["ada"] if n % 2 else ["ben", "ada"]) for n in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await one.get("/approvals", limit=2, **cursor)
        assert len(page["items"]) <= 2
        seen += [a["run_id"] for a in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == runs
    assert [a["run_id"] for a in (await one.get("/approvals", assignee="ben"))["items"]] == runs[::2]
    assert (await one.get("/approvals", assignee="eve"))["items"] == []
    assert (await one.get("/approvals", assignee="@me"))["items"] == []
    assert (await one.get("/approvals", workflow="rest_other"))["items"] == []
    assert len((await one.get("/approvals", workflow="rest_ask"))["items"]) == 5
    for bad in ("x", "AAAA", cursor["cursor"][:-3]):
        await one.get("/approvals", 422, cursor=bad)


async def test_a_page_goes_on_behind_what_does_not_match(one: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.approvals.SCAN_ROWS", 2)
    monkeypatch.setattr("perdure.store.approvals.SCANS_MAX", 1)
    await asyncio.gather(*(asked(one, people=["ben"]) for _ in range(4)))
    wanted = await asked(one, people=["ada"])
    found: list[str] = []
    page = await one.get("/approvals", assignee="ada")
    pages = 1
    while page["next"] is not None:
        found += [a["run_id"] for a in page["items"]]
        page = await one.get("/approvals", assignee="ada", cursor=page["next"])
        pages += 1
    assert (found + [a["run_id"] for a in page["items"]], pages) == ([wanted], 3)


async def test_keys_are_known_by_their_names(dsn: str) -> None:
    async with live(dsn, keys=True) as one:
        await one.perdure.deploy(FLOW)

        async def key(name: str, role: Role) -> dict[str, str]:
            new = NewKey(name=name, role=role, namespace="default", created_by="test")
            return {"authorization": f"Bearer {(await one.server.api.ports.keys.create(new))[1]}"}

        boss, ops, viewer = (
            await key("boss", Role.ADMIN),
            await key("ops", Role.OPERATOR),
            await key("see", Role.VIEWER),
        )
        one.http.headers.update(boss)
        run = await asked(one, people=["ops"])
        assert len((await one.ask("GET", "/approvals?assignee=@me", 200, headers=ops))["items"]) == 1
        assert (await one.ask("GET", "/approvals?assignee=@me", 200, headers=boss))["items"] == []
        body = {"value": {"price": 1}}
        assert (await one.ask("POST", path(run, "approve"), 403, json=body, headers=viewer))["code"] == "forbidden"
        assert (await one.ask("POST", path(run, "approve"), 403, json=body, headers=boss))["code"] == "not_assigned"
        assert (await one.ask("POST", path(run, "approve"), 200, json=body, headers=ops))["votes"][0]["who"] == "ops"


# -- links ---------------------------------------------------------------------------------------------------------


async def link(one: Live, run: str, **said: Any) -> str:
    return str((await one.post(path(run, "links"), {"who": "dev"} | said))["url"])


async def test_the_page_shows_what_is_asked_and_nothing_that_runs(one: Live) -> None:
    run = await asked(one, title="<script>alert(1)</script> & so on")
    url = await link(one, run)
    async with httpx2.AsyncClient(timeout=120) as stranger:
        page = await stranger.get(url)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "form-action 'self'" in policy
    assert (page.headers["cache-control"], page.headers["referrer-policy"]) == ("no-store", "same-origin")
    assert "<script" not in page.text and "&lt;script&gt;alert(1)" in page.text and "<b>bold" not in page.text
    for part in (
        "It cannot be taken back.",
        "Price in euros",
        'name="f.price"',
        'type="number"',
        'min="1',
        'name="f.size"',
        "<option",
        "selected",
        'name="f.urgent"',
        'type="checkbox"',
        'name="f.tags"',
        'value="approve"',
        'value="reject"',
    ):
        assert part in page.text, part


async def test_a_browser_fills_in_the_form_and_gets_a_page_back(one: Live) -> None:
    run = await asked(one)
    url = await link(one, run)
    async with httpx2.AsyncClient(timeout=120) as stranger:
        form = {"f.price": "12", "f.size": "0", "f.ratio": "0.5", "f.urgent": "on", "f.tags": '["x"]'}
        nothing = await stranger.post(url, data=form)
        assert nothing.status_code == 422 and "neither approve nor reject" in nothing.text
        for field, value, said in (
            ("f.price", "0", "at least 1"),
            ("f.tags", "[", "not JSON"),
            ("f.size", "7", "choose one"),
        ):
            wrong = await stranger.post(url, data={**form, "answer": "approve", field: value, "comment": "kept & safe"})
            assert wrong.status_code == 422 and said in wrong.text and "kept &amp; safe" in wrong.text
            assert 'value="12"' in wrong.text or field == "f.price", "what was typed is still there"
        done = await stranger.post(url, data={**form, "answer": "approve", "comment": "ok"})
    assert done.status_code == 200 and "You approved this." in done.text and "approved by dev" in done.text
    result = (await one.get(f"/runs/{run}/result", wait=60))["result"]["ask"]
    assert result["value"] == {"price": 12, "size": "small", "ratio": 0.5, "urgent": True, "tags": ["x"]}
    assert (result["by"], result["comment"]) == (["dev"], "ok")


async def test_a_program_asks_for_json(one: Live) -> None:
    run = await asked(one)
    url = await link(one, run, decision="reject")
    headers = {"accept": "application/json"}
    async with httpx2.AsyncClient(headers=headers, timeout=120) as program:
        found = (await program.get(url)).json()
        assert (found["kind"], found["who"], found["approval"]["title"]) == ("approval", "dev", "Publish?")
        for bad in ({}, {"approved": "yes"}, {"approved": True, "x": 1}, [], None):
            assert (await program.post(url, json=bad)).status_code == 422
        done = await program.post(url, json={"approved": False, "comment": "no"})
        assert (done.status_code, done.json()["approval"]["status"]) == (200, "rejected")
        again = await program.post(url, json={"approved": True})
        assert (again.status_code, again.json()["code"]) == (409, "link_used")
    result = (await one.get(f"/runs/{run}/result", wait=60))["result"]["ask"]
    assert (result["approved"], result["comment"]) == (False, "no")


async def test_what_was_delegated_away_or_decided_meanwhile_the_link_no_longer_answers(one: Live) -> None:
    run = await asked(one, people=["dev", "ben"])
    first, second = await link(one, run), await link(one, run, who="ben")
    await one.post(path(run, "delegate"), {"to": "cleo"}, 200)
    async with httpx2.AsyncClient(headers={"accept": "application/json"}, timeout=120) as program:
        for answer in (await program.get(first), await program.post(first, json={"approved": False})):
            assert (answer.status_code, answer.json()["code"]) == (403, "not_assigned")
        await one.post(path(run, "reject"), {"as": "cleo"}, 200)
        await one.get(f"/runs/{run}/result", wait=60)
        over = await program.post(second, json={"approved": True, "value": {"price": 1}})
        assert (over.status_code, over.json()["code"]) == (409, "run_finished")


async def test_a_refusal_is_a_page_for_people_and_a_problem_for_programs(one: Live) -> None:
    async with httpx2.AsyncClient(timeout=120) as stranger:
        page = await stranger.get(f"{one.url}/links/nothing")
        assert page.status_code == 404 and "<h1>not_found</h1>" in page.text
        problem = await stranger.get(f"{one.url}/links/nothing", headers={"accept": "application/json"})
        assert problem.headers["content-type"] == "application/problem+json" and problem.json()["code"] == "not_found"
        assert (await stranger.get(f"{one.url}/links/{'A' * 5000}")).status_code in (404, 422)
        assert (await stranger.post(f"{one.url}/links/nothing", content=b"x" * (1 << 21))).status_code == 413


async def test_addresses_that_ask_too_often_are_slowed_down(one: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "LINKS_BURST", 3.0)
    monkeypatch.setattr(rest, "LINKS_PER_S", 0.01)
    async with httpx2.AsyncClient(timeout=120) as stranger:
        got = [(await stranger.get(f"{one.url}/links/x")).status_code for _ in range(5)]
    assert got == [404, 404, 404, 429, 429]


async def test_a_link_of_one_installation_is_nothing_to_another(one: Live) -> None:
    run = await asked(one)
    token = (await link(one, run)).rpartition("/")[2]
    async with one.perdure.store.pool.take() as c:
        await c.execute("update perdure.secret set value = sha256(value)")
    other = Links(Api(one.perdure.engine, api_ports(one.perdure.store), lambda: one.url))
    with pytest.raises(Exception, match="no such link"):
        await other.read(token)
    assert (await Links(one.server.api).read(token)).name == "ask", "the other one still signs with the old secret"


async def test_an_approval_is_not_answered_by_the_link_of_a_promise(one: Live) -> None:
    run = await one.start("rest_pay")
    made = await one.post(f"/runs/{run['id']}/promises/rest_paid/links", {})
    refused = await one.post(f"/runs/{await asked(one)}/promises/ask/links", {}, 409)
    assert "is an approval" in refused["detail"]
    async with httpx2.AsyncClient(timeout=120) as stranger:
        assert (await stranger.post(made["url"], data={"value": "7"})).status_code == 200
    assert (await one.get(f"/runs/{run['id']}/result", wait=60))["result"] == 7
    after = await one.post(f"/runs/{run['id']}/promises/rest_paid/links", {}, 409)
    assert after["code"] == "run_finished"


# -- fields --------------------------------------------------------------------------------------------------------


def test_a_form_that_is_no_object_is_one_field() -> None:
    for form, typed, value in (
        ({"type": "integer"}, "3", 3),
        ({"type": "string"}, "x", "x"),
        ({"type": "boolean"}, "on", True),
        ({"type": "boolean"}, "", False),
        ({"enum": ["a", None]}, "1", None),
        ({"type": "array"}, "[1]", [1]),
        ({"type": ["number", "null"]}, "2.5", 2.5),
        ({}, '{"a": 1}', {"a": 1}),
    ):
        assert read_fields(form, {"f.value": typed}) == value
    assert read_fields(None, {"f.value": "3"}) is None


def test_odd_schemas_still_make_a_form() -> None:
    for schema in (
        True,
        5,
        None,
        {"type": 3},
        {"type": ["string", "integer"]},
        {"enum": "x"},
        {"title": 4, "default": {}},
    ):
        (field,) = fields_of({"properties": {"a": schema}})
        assert field.name == "a" and re.fullmatch(r"[a-z]+", field.look)
    wide = {"properties": {f"p{n}": {"type": "string"} for n in range(200)}}
    assert [f.look for f in fields_of(wide)] == ["json"]
    assert read_fields(wide, {"f.value": '{"p1": "x"}'}) == {"p1": "x"}


# -- gRPC ----------------------------------------------------------------------------------------------------------


@dataclass
class Terms:
    price: int


deal = Approval("grpc_deal", Terms, assignees=["test", "ben"], quorum=2)
word = Promise("grpc_word", str)


@workflow
async def grpc_deal_flow() -> int:
    return (await deal.wait()).price


async def test_a_remote_client_answers_delegates_and_makes_links(dsn: str) -> None:
    async with grpc_server(dsn) as served, worker(served.address), Client(served.address):
        handle = await grpc_deal_flow.start()

        async def is_asked() -> bool:
            return "PromiseCreated" in [type(r.event).__name__ for r in await handle.history()]

        await until(is_asked)
        with pytest.raises(NotAssigned):
            await deal.approve(handle.id, Terms(1), by="eve")
        url = await deal.link(handle.id, "ben")
        assert url.startswith("https://example.org/links/")
        await deal.delegate(handle.id, "cleo", by="ben")
        assert await deal.approve(handle.id, Terms(3)) is False, "under one's own name"
        assert await deal.approve(handle.id, Terms(4), by="cleo") is True
        assert await handle.result("3m") == 4
        with pytest.raises((ApprovalClosed, RunFinished)):
            await deal.approve(handle.id, Terms(4))


def test_errors_of_approvals_come_back_as_themselves_over_grpc() -> None:
    from perdure.core.error_codes import error_for

    for kind in (ApprovalClosed, NotAssigned, Forbidden, LinkUsed):
        assert type(error_for(kind.code, "x")) is kind
