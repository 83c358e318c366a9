"""The plain pages: readable without a script, and nothing in them is ever taken for markup."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from perdure.server.rest.pages import pretty
from tests.server.rest_live import Live, live


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
    assert "<script" not in answer.text
    assert not re.search(r"<[^>]*\s(on\w+|style)=", answer.text), "an inline handler or style"
    return answer.text


async def test_the_type_of_a_problem_leads_to_its_meaning(api: Live) -> None:
    shown = await page(api, "/errors")
    assert 'id="not_registered"' in shown and 'id="idempotency_conflict"' in shown


async def test_static_files(api: Live) -> None:
    answer = await api.http.get(f"{api.url}/static/perdure.css")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/css")
    for name in ("guard.py", "../app.py", "refresh.js"):
        assert (await api.http.get(f"{api.url}/static/{name}")).status_code == 404


def test_a_long_payload_is_cut() -> None:
    assert pretty("x" * 50_000).endswith("characters more")
