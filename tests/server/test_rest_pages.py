"""The plain pages: readable without a script, and nothing in them is ever taken for markup."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.server.rest.pages import duration, pretty
from perdure.server.rest.tracebacks import frames
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live

EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        yield one


async def page(api: Live, path: str, status: int = 200) -> str:
    answer = await api.http.get(f"{api.url}{path}")
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)", answer.text), "a script inside the page"
    assert not re.search(r"\bon\w+=|\bstyle=", answer.text), "an inline handler or style"
    header = re.search(r'<header class="top">.*<span class="dim">(.*)</span></header>', answer.text)
    assert header is not None and header[1] in ("", "default"), "the namespace, or nothing where there is none"
    return answer.text


async def test_an_empty_list_says_what_to_do_next(api: Live) -> None:
    assert "perdure start" in await page(api, "/")


async def test_the_latest_runs_and_one_of_them(api: Live) -> None:
    good = await api.ended("rest_sum", input={"x": 2}, attributes={"env": EVIL})
    bad = await api.ended("rest_fail", input={"why": EVIL}, key="evil-1")
    active = await api.start("rest_listen")
    listed = await page(api, "/")
    assert all(f"/runs/{run['id']}" in listed for run in (good, bad, active)) and "refresh.js" in listed
    assert "evil-1" in listed and EVIL not in listed and "&lt;script&gt;" in listed
    assert good["id"] not in await page(api, "/?status=failed")
    shown = await page(api, f"/runs/{good['id']}")
    assert "rest_double" in shown and "refresh.js" not in shown and EVIL not in shown and "RunSucceeded" in shown
    failed = await page(api, "/runs/key:evil-1")
    assert "TaskFailed" in failed and EVIL not in failed and "&lt;script&gt;" in failed
    assert "rest_live.py" in failed, "the frame of the user's own code"
    waits = await page(api, f"/runs/{active['id']}")
    assert "Waiting on" in waits and "refresh.js" in waits and "data-live" in waits


async def test_a_run_is_shown_with_its_children(api: Live) -> None:
    run = await api.ended("rest_parent")
    (child,) = (await api.http.get(f"{api.url}/api/v1/runs/{run['id']}/children")).json()["items"]
    shown = await page(api, f"/runs/{run['id']}")
    assert "<h2>Children</h2>" in shown and f"/runs/{child['id']}" in shown and "rest_sum" in shown
    assert "<h2>Children</h2>" not in await page(api, f"/runs/{child['id']}")


async def test_the_list_says_what_each_run_waits_for(api: Live) -> None:
    run = await api.start("rest_pay", key="to-be-paid")

    async def wait_of_the_first() -> Any:
        return (await api.get("/runs"))["items"][0]["waiting"]

    waiting = await until(wait_of_the_first)
    row = re.search(rf"<tr>(?:(?!</tr>).)*{run['id']}.*?</tr>", await page(api, "/"), re.S)
    assert row is not None and waiting["reason"] in html.unescape(row[0])


async def test_what_is_not_there_is_a_page_as_well(api: Live) -> None:
    assert "not_found" in await page(api, "/runs/nonsense", 404)
    answer = await api.http.get(f"{api.url}/static/../app.py")
    assert answer.status_code == 404


async def test_the_type_of_a_problem_leads_to_its_meaning(api: Live) -> None:
    shown = await page(api, "/errors")
    assert 'id="not_registered"' in shown and 'id="idempotency_conflict"' in shown


async def test_static_files(api: Live) -> None:
    for name, kind in (("perdure.css", "text/css"), ("refresh.js", "text/javascript")):
        answer = await api.http.get(f"{api.url}/static/{name}")
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
    assert (await api.http.get(f"{api.url}/static/guard.py")).status_code == 404


def test_durations_have_at_most_two_units() -> None:
    assert [duration(s) for s in (0.62, 8.4, 247, 6_120, 273_600)] == [
        "620 ms",
        "8.4 s",
        "4 m 07 s",
        "1 h 42 m",
        "3 d 4 h",
    ]


def test_a_long_payload_is_cut() -> None:
    assert pretty("x" * 50_000).endswith("characters more")


def test_own_frames_are_told_from_library_frames() -> None:
    text = """Traceback (most recent call last):
  File "/app/etl.py", line 41, in process
    rows = await normalise(batch)
           ^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/httpx2/_models.py", line 763, in raise_for_status
    raise HTTPStatusError(message)
httpx2.HTTPStatusError: 503
"""
    inner, outer = frames(text)
    assert (inner.own, inner.line, outer.own, outer.file) == (False, 763, True, "/app/etl.py")
    assert outer.code == "rows = await normalise(batch)"
    assert frames("no traceback at all") == []
