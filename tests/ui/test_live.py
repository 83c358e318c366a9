"""A lost stream, and a server that is killed and comes back."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.ui.conftest import Visit
from tests.ui.site import Site
from tests.ui.test_runs import status


def test_a_lost_stream_says_so_and_catches_up(shop: Site, admin: Visit) -> None:
    run = shop.start("listen", input={"count": 1})
    page = admin.page(f"/runs/{run}")
    status(page, "Running")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    shop.kill("server")
    expect(page.get_by_text(re.compile(r"Reconnecting, data from \d\d:\d\d:\d\d"))).to_be_visible()
    status(page, "Running")
    shop.start_server()
    shop.ask("POST", f"/runs/{run}/signals/steer", "back")
    shop.result(run)
    expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=30_000)
    status(page, "Success")


def test_one_stream_per_page(shop: Site, admin: Visit) -> None:
    run = shop.start("listen")
    streams: list[str] = []
    admin.context.on("request", lambda r: streams.append(r.url) if "/api/v1/stream" in r.url else None)
    page = admin.page(f"/runs/{run}")
    status(page, "Running")
    page.get_by_role("tab", name=re.compile("^Logs")).click()
    page.get_by_role("link", name="Runs", exact=True).first.click()
    expect(page.get_by_role("table", name="Runs")).to_be_visible()
    page.wait_for_timeout(500)
    open_now = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/v1/stream') && !e.responseEnd).length"
    )
    assert streams and all("counts=true" in url for url in streams), "topics share one address"
    assert open_now <= 1
