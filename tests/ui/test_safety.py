"""Hostile data, other sites, and roles: what a page must not do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Visit
from tests.ui.site import Site
from tests.ui.test_runs import status

MARKUP = '<img src=x onerror="window.owned=1"><script>window.owned=1</script><a href="javascript:window.owned=1">x</a>'
ANSI = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202egnp.exe"

FROZEN_MS = 10_000
"""A page that shows nothing for so long has frozen."""


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [MARKUP, ANSI, {MARKUP: MARKUP}, [MARKUP] * 50, "x" * 1_000_000, nested(55), {f"key {n}": n for n in range(5_000)}],
    ids=["markup", "ansi", "keys", "list", "megabyte", "deep", "wide"],
)
def test_payloads_are_text(shop: Site, admin: Visit, value: Any) -> None:
    if isinstance(value, str) and len(value) > 900_000:
        value = value[:900_000]  # what one request may carry
    run = shop.start("echo", input={"value": value})
    shop.result(run)
    page = admin.page(f"/runs/{run}")
    status(page, "Success")
    for tab in ("Input and output", "History", "Logs", "State", "Timeline"):
        began = page.evaluate("performance.now()")
        page.get_by_role("tab", name=re.compile(f"^{tab}")).click()
        page.wait_for_timeout(100)
        assert page.evaluate("performance.now()") - began < FROZEN_MS, f"{tab} froze"
    page.get_by_role("tab", name="Input and output").click()
    panel = page.get_by_role("tabpanel")
    if isinstance(value, str) and value.startswith("x"):
        expect(panel.get_by_role("button", name=re.compile("Show all")).first).to_be_visible()
    if value == MARKUP:
        expect(panel).to_contain_text("<script>window.owned=1</script>")
    if value == ANSI:
        assert "\x1b" not in panel.inner_text() and "\u202e" not in panel.inner_text()
    page.goto(f"{shop.url}/runs")
    expect(page.get_by_role("table", name="Runs").get_by_role("row").nth(1)).to_be_visible()
    assert page.evaluate("window.owned") is None


def test_names_of_users_are_text_everywhere(shop: Site, admin: Visit) -> None:
    shop.ask("PUT", "/views/" + "<b>mine", {"query": "status = failed"})
    run = shop.start("hello", input={"name": MARKUP}, key="<i>key</i>", attributes={"<u>": MARKUP[:80]})
    shop.result(run)
    for path in ("/runs", f"/runs/{run}", "/workflows/hello", "/audit"):
        page = admin.page(path)
        page.wait_for_timeout(800)
        assert page.evaluate("window.owned") is None and page.locator("main script, main img").count() == 0, path
        page.close()
    shop.ask("DELETE", "/views/<b>mine")


@pytest.fixture
def other_site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A page of an attacker, on another origin of this machine."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}", tmp_path
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_of_another_site_can_do_and_read_nothing(
    shop: Site, visits: Callable[..., Visit], other_site: tuple[str, Path]
) -> None:
    address, folder = other_site
    run = shop.start("sleepy")
    (folder / "evil.html").write_text(
        f"""<form id=f method=post enctype=text/plain action="{shop.url}/api/v1/runs/{run}/cancel"><input name='{{"reason":"' value='"}}'></form>
        <iframe id=i src="{shop.url}/runs/{run}"></iframe>"""
    )
    visit = visits(shop.url)
    visit.tolerated = re.compile("")  # the attempts below are refused, and the browser says so
    visit.sign_in(shop.key("admin"))
    page = visit.context.new_page()
    page.goto(f"{address}/evil.html")
    read = page.evaluate(
        """async (url) => { try { const r = await fetch(url, {credentials: 'include'}); return await r.text(); } catch (e) { return 'refused'; } }""",
        f"{shop.url}/api/v1/runs",
    )
    sent = page.evaluate(
        """async (url) => { try { const r = await fetch(url, {method: 'POST', credentials: 'include', headers: {'Content-Type': 'application/json'},
            body: '{}'}); return String(r.status); } catch (e) { return 'refused'; } }""",
        f"{shop.url}/api/v1/runs/{run}/cancel",
    )
    assert (read, sent) == ("refused", "refused")
    frame = page.frame(url=re.compile("/runs/"))
    assert frame is None or "Perdure" not in frame.content(), "the page lets itself be framed"
    page.evaluate("document.getElementById('f').submit()")
    page.wait_for_timeout(500)
    assert shop.status(run) == "running"
    visit.problems.clear()


def test_a_request_with_the_cookie_needs_the_token_of_the_page(shop: Site, admin: Visit) -> None:
    run = shop.start("sleepy")
    page = admin.page(f"/runs/{run}")
    status(page, "Running")
    without = page.evaluate(
        """async (url) => { const r = await fetch(url, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'}); return [r.status, (await r.json()).code]; }""",
        f"/api/v1/runs/{run}/cancel",
    )
    assert without == [403, "csrf_failed"] and shop.status(run) == "running"


ACTS = re.compile(
    r"^(Start run|Signal|Retry|Cancel|Terminate|Pause|Resume|Fork|Approve|Reject|Backfill|New |Delete|Revoke|Create|Publish|Trigger|Emit|Send|Rerun|Set )"
)


def buttons(page: Page) -> list[str]:
    return [b for b in page.get_by_role("main").get_by_role("button").all_inner_texts() if ACTS.search(b.strip())]


def test_a_viewer_sees_no_act_it_may_not_do(shop: Site, viewer: Visit, admin: Visit) -> None:
    run = shop.start("listen")
    shop.start("report", input={"title": "for the viewer"})
    seen: dict[str, list[str]] = {}
    for path in (
        "/runs",
        f"/runs/{run}",
        "/workflows",
        "/workflows/hello",
        "/schedules",
        "/approvals",
        "/workers",
        "/limits",
        "/dead-letters",
        "/events",
        "/settings",
    ):
        page = viewer.page(path)
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        page.wait_for_timeout(700)
        seen[path] = buttons(page)
        marks = page.locator("main .check:enabled, main [role=switch]:enabled").count()
        assert marks == (1 if path == "/events" else 0), (
            f"{path}: a mark to select or switch with"
        )  # events: whether to follow new ones
        page.close()
    assert not any(seen.values()), seen
    page = admin.page(f"/runs/{run}")
    expect(page.get_by_role("button", name="Signal", exact=True)).to_be_visible()
    page = viewer.page("/audit")
    page.wait_for_timeout(500)
    assert viewer.page("/runs").get_by_role("link", name="Audit").count() == 0
