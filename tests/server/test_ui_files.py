"""The files of the web UI as a browser gets them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.server.rest import ui
from tests.server.rest_live import Live, live

INDEX = b'<!doctype html><script type="module" src="/assets/index-abc.js"></script>'
SCRIPT = b"console.log('hello');" * 50


@pytest.fixture
def some_build(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A build of our own: whether one is in the checkout does not matter here."""
    files = {"index.html": ui._file(INDEX, "text/html"), "assets/index-abc.js": ui._file(SCRIPT, "text/javascript")}
    monkeypatch.setattr(ui, "built", lambda: files)
    yield


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        yield one


@pytest.mark.usefixtures("some_build")
async def test_every_page_is_the_document_and_asked_for_again(api: Live) -> None:
    for path in ("/", "/runs?q=status%20%3D%20failed", "/runs/0192a6f0", "/workflows/a%2Fb", "/settings"):
        answer = await api.http.get(f"{api.url}{path}")
        assert (answer.status_code, answer.content) == (200, INDEX), path
        assert answer.headers["cache-control"] == "no-cache"
        again = await api.http.get(f"{api.url}{path}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.usefixtures("some_build")
async def test_hashed_files_are_kept_for_ever_and_compressed(api: Live) -> None:
    answer = await api.http.get(f"{api.url}/assets/index-abc.js")
    assert answer.content == SCRIPT and "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-encoding"] == "gzip" and int(answer.headers["content-length"]) < len(SCRIPT)
    plain = await api.http.get(f"{api.url}/assets/index-abc.js", headers={"Accept-Encoding": "identity"})
    assert plain.content == SCRIPT and "content-encoding" not in plain.headers


@pytest.mark.usefixtures("some_build")
async def test_only_files_of_the_build_are_served(api: Live) -> None:
    for path in ("/assets/other.js", "/assets/..%2Findex.html", "/assets/%2e%2e%2fui.py", "/nothing", "/runs.html"):
        assert (await api.http.get(f"{api.url}{path}")).status_code == 404, path


@pytest.mark.usefixtures("some_build")
async def test_an_unknown_address_is_a_page_for_people_and_a_problem_for_programs(api: Live) -> None:
    for path, accept, expected in (
        ("/nowhere", "text/html,*/*", INDEX),
        ("/nowhere", "application/json", b"not_found"),
        ("/api/v1/nowhere", "text/html", b"not_found"),
    ):
        answer = await api.http.get(f"{api.url}{path}", headers={"Accept": accept})
        assert answer.status_code == 404 and expected in answer.content, path


@pytest.mark.usefixtures("some_build")
async def test_the_policy_of_a_page(api: Live) -> None:
    answer = await api.http.get(f"{api.url}/runs")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert (
        policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'" and policy["base-uri"] == "'none'"
    )
    assert all(policy[kind] == "'self'" for kind in ("script-src", "style-src", "connect-src", "img-src", "worker-src"))
    assert answer.headers["x-frame-options"] == "DENY" and answer.headers["x-content-type-options"] == "nosniff"


async def test_a_checkout_without_a_build_says_how_to_get_one(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "built", dict)
    answer = await api.http.get(f"{api.url}/runs")
    assert answer.status_code == 503 and "just ui-build" in answer.text and answer.text.count("\n") == 1
