"""axe on every page in both themes, contrast included; statuses that do not depend on colour; the graph's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Visit
from tests.ui.site import ROOT, Site

AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
LOUD = ("serious", "critical")
FLOW = """flow: small
tasks:
  first: {value: "one"}
  second: {depends_on: first, value: "two"}
"""


def findings(page: Page, *rules: str) -> list[str]:
    """Of these rules, or of all."""
    page.evaluate("if (!window.axe) {" + AXE.read_text() + "}")
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found: dict[str, Any] = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{v['id']} ({v['impact']}): {node['target']} {node['failureSummary'][:200]}"
        for v in found["violations"]
        if v["impact"] in LOUD
        for node in v["nodes"][:3]
    ]


@pytest.fixture(scope="module")
def filled(shop: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    flag: Path = tmp_path_factory.mktemp("flags") / "flag"
    shop.ask("POST", "/workflows/deploy", {"source": FLOW})
    made = {
        "active": shop.start("listen"),
        "failed": shop.start("mend", input={"flag": str(flag)}),
        "fan": shop.start("spread", input={"n": 40}),
        "flow": shop.start("small"),
        "asked": shop.start("report", input={"title": "October"}),
    }
    for name in ("failed", "fan", "flow"):
        shop.result(made[name])
    shop.ask(
        "POST",
        "/schedules",
        {
            "name": "daily",
            "workflow": "hello",
            "spec": {"cron": "0 8 * * *", "tz": "Europe/Paris"},
            "input": {"name": "x"},
        },
    )
    return made


PAGES = (
    "/runs",
    "/runs?start=hello",
    "/runs/{active}",
    "/runs/{failed}",
    "/runs/{fan}",
    "/runs/{flow}?tab=graph",
    "/runs/{failed}?tab=history",
    "/runs/{failed}?tab=logs",
    "/runs/{failed}?tab=io",
    "/runs/{active}?tab=state",
    "/workflows",
    "/workflows/hello",
    "/workflows/small?tab=definition",
    "/schedules?name=daily",
    "/approvals",
    "/workers",
    "/limits",
    "/dead-letters",
    "/events",
    "/audit",
    "/settings",
    "/nowhere",
)


BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_no_serious_finding_on_any_page(shop: Site, admin: Visit, filled: dict[str, str]) -> None:
    """Every rule in light; in dark the contrast, which is all that a theme changes."""
    page = admin.page("/runs")
    found: dict[str, list[str]] = {}
    for path in PAGES:
        page.emulate_media(color_scheme="light")
        page.goto(shop.url + path.format(**filled))
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        page.wait_for_timeout(900)
        problems, light = findings(page), page.evaluate(BACKGROUND)
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(f"(light) => {BACKGROUND} !== light", arg=light)
        problems += [f"dark: {problem}" for problem in findings(page, "color-contrast")]
        if problems:
            found[path] = problems
    assert not found, "\n".join(f"{path}: {problem}" for path, problems in found.items() for problem in problems)


def test_the_sign_in_page(shop: Site, visits: Callable[..., Visit]) -> None:
    page = visits(shop.url).page("/")
    expect(page.get_by_label("API key")).to_be_visible()
    assert findings(page) == []


def test_overlays(shop: Site, admin: Visit) -> None:
    page = admin.page("/runs")
    expect(page.get_by_role("table", name="Runs")).to_be_visible()
    for key, name in (("?", "Keyboard shortcuts"), ("Control+k", "Command palette")):
        page.keyboard.press(key)
        expect(page.get_by_role("dialog", name=name)).to_be_visible()
        assert findings(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name=name)).to_have_count(0)


def test_the_graph_has_a_table(shop: Site, admin: Visit, filled: dict[str, str]) -> None:
    page = admin.page(f"/runs/{filled['flow']}?tab=graph")
    page.get_by_role("button", name="Table").click()
    table = page.get_by_role("tabpanel").get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table).to_contain_text("first")
    expect(table).to_contain_text("Success")
