"""Everything with the keyboard alone: no click, and no script moves the focus. Focus is always somewhere and can be seen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, expect

from tests.ui.conftest import Visit
from tests.ui.site import Site
from tests.ui.test_runs import status

TABS_MAX: Final = 120

FOCUS: Final = """() => {
  let one = document.activeElement;
  while (one?.shadowRoot?.activeElement) one = one.shadowRoot.activeElement;
  const isMarked = (part) => {
    const style = part && getComputedStyle(part);
    return style && (style.outlineStyle !== "none" || style.boxShadow !== "none");
  };
  const box = one.getBoundingClientRect();
  const text = one.labels?.[0]?.innerText ?? "";
  return {
    tag: one.tagName,
    role: one.getAttribute("role") ?? "",
    name: (one.getAttribute("aria-label") || text || one.innerText || one.getAttribute("title") || "").trim(),
    row: one.closest("tr")?.innerText ?? "",
    inDialog: one.closest("dialog[open]") !== null,
    marked: [one, one.closest("label"), one.closest("tr")].some(isMarked),
    isSeen: box.width > 0 && box.height > 0,
  };
}"""


@dataclass
class Keyboard:
    """A person who has no mouse."""

    page: Page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    @property
    def focus(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate(FOCUS)
        return found

    def has(self, name: str) -> bool:
        return re.search(name, self.focus["name"].split("\n")[0]) is not None

    def tab_to(self, name: str, *, key: str = "Tab") -> None:
        """Presses Tab until what has the focus has this name."""
        passed = []
        for _step in range(TABS_MAX):
            self.press(key)
            if self.has(name):
                return self.focus_is_seen()
            passed.append(self.focus["name"][:30])
        raise AssertionError(f"Tab does not lead to {name}; it passed {passed}")

    def focus_is_seen(self) -> None:
        found = self.focus
        assert found["tag"] != "BODY", "the focus is lost"
        assert found["isSeen"] and found["marked"], f"the focus cannot be seen: {found}"

    def in_dialog(self, name: str | re.Pattern[str]) -> None:
        """Where focus is kept until the dialog is closed."""
        expect(self.page.get_by_role("dialog", name=name)).to_be_visible()
        assert self.focus["inDialog"], self.focus

    def after_dialog(self, back: str | None = None) -> None:
        expect(self.page.get_by_role("dialog")).to_have_count(0)
        if back:
            self.page.wait_for_timeout(50)
            assert self.has(back), self.focus


def test_everything_is_reached_by_keyboard(shop: Site, visits: Callable[..., Visit], tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    failed = shop.start("mend", input={"flag": str(flag)}, key="kb-failed")
    shop.result(failed)
    waiting = shop.start("sleepy", key="kb-waiting")
    shop.start("report", input={"title": "Keys"}, key="kb-report")
    spec = {"cron": ["0 8 * * *"]}
    shop.ask("POST", "/schedules", {"name": "early", "workflow": "hello", "spec": spec, "input": {"name": "x"}})
    keyboard = Keyboard(visits(shop.url).page("/workflows"))
    signs_in(keyboard, shop.key("admin"))
    looks_around(keyboard)
    opens_a_run(keyboard, "kb-failed")
    looks_at_a_run(keyboard)
    cancels_a_run(keyboard, shop, waiting)
    approves(keyboard, shop)
    starts_a_run(keyboard)
    pauses_a_schedule(keyboard, shop)


def signs_in(keyboard: Keyboard, key: str) -> None:
    expect(keyboard.page.get_by_label("API key")).to_be_visible()
    keyboard.tab_to("API key")
    keyboard.type(key)
    keyboard.press("Enter")
    expect(keyboard.page.get_by_role("navigation", name="Main")).to_be_visible()


def looks_around(keyboard: Keyboard) -> None:
    page = keyboard.page
    keyboard.press("Tab")
    assert keyboard.has("Skip to content"), keyboard.focus
    keyboard.press("Enter")
    assert keyboard.focus["tag"] == "MAIN"
    keyboard.press("Control+k")
    keyboard.in_dialog("Command palette")
    assert keyboard.has("Command")
    keyboard.type("approvals")
    expect(page.get_by_role("option", name="Go to approvals")).to_have_attribute("aria-selected", "true")
    keyboard.press("Enter")
    keyboard.after_dialog()
    expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
    before = page.locator("html").get_attribute("data-theme")
    keyboard.press("t")
    expect(page.locator("html")).not_to_have_attribute("data-theme", before or "-")
    keyboard.press("?")
    keyboard.in_dialog("Keyboard shortcuts")
    keyboard.press("Tab")
    keyboard.in_dialog("Keyboard shortcuts")
    keyboard.press("Escape")
    keyboard.after_dialog()


def opens_a_run(keyboard: Keyboard, key: str) -> None:
    page = keyboard.page
    keyboard.press("g", "r")
    page.wait_for_url(re.compile("/runs"))
    expect(page.get_by_role("table", name="Runs").get_by_role("row").nth(3)).to_be_visible()
    keyboard.press("f")
    assert keyboard.has("Query")
    keyboard.focus_is_seen()
    keyboard.type(f"key = {key}")
    keyboard.press("Enter")
    rows = page.get_by_role("table", name="Runs").get_by_role("row")
    expect(rows).to_have_count(2)
    keyboard.press("Escape", "f")
    keyboard.type("key prefix kb-")
    keyboard.press("Enter")
    expect(rows).to_have_count(4)
    keyboard.press("Escape", "j")
    first = keyboard.focus["row"]
    keyboard.focus_is_seen()
    keyboard.press("j")
    assert keyboard.focus["row"] != first
    keyboard.press("k")
    assert keyboard.focus["row"] == first
    for _row in range(3):
        if key in keyboard.focus["row"]:
            break
        keyboard.press("j")
    keyboard.focus_is_seen()
    keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    status(page, "Failed")


def looks_at_a_run(keyboard: Keyboard) -> None:
    page = keyboard.page
    tabs = page.get_by_role("tab")
    for number, name in enumerate(("Timeline", "Graph", "History", "Logs", "Input and output", "State"), start=1):
        keyboard.press(str(number))
        expect(tabs.filter(has_text=name)).to_have_attribute("aria-selected", "true")
    keyboard.press("1")
    selected = page.locator("[role=treeitem][aria-selected=true]")
    expect(selected).to_have_attribute("data-row", re.compile("fragile"))
    keyboard.press("k")
    expect(selected).to_have_attribute("data-row", re.compile("greet"))
    keyboard.press("j")
    expect(selected).to_have_attribute("data-row", re.compile("fragile"))
    keyboard.press("k", "n")
    expect(selected).to_have_attribute("data-row", re.compile("fragile"))
    keyboard.tab_to("^Timeline")
    keyboard.press("ArrowRight")
    expect(tabs.filter(has_text="Graph")).to_have_attribute("aria-selected", "true")
    assert keyboard.has("Graph")
    keyboard.press("ArrowLeft")
    keyboard.tab_to("^fragile")
    keyboard.press("Escape")
    page.wait_for_url(lambda url: "task=" not in url)
    keyboard.press("Escape")
    expect(page.get_by_role("table", name="Runs")).to_be_visible()


def cancels_a_run(keyboard: Keyboard, shop: Site, run: str) -> None:
    page = keyboard.page
    keyboard.press("Control+k")
    keyboard.type("kb-waiting")
    expect(page.get_by_role("option", name="Open run kb-waiting")).to_have_attribute("aria-selected", "true")
    keyboard.press("Enter")
    page.wait_for_url(re.compile(run))
    status(page, "Running")
    keyboard.tab_to("More actions")
    keyboard.press("Enter")
    items = page.get_by_role("menu").get_by_role("menuitem")
    expect(items.first).to_be_focused()
    keyboard.press("Escape")
    assert keyboard.has("More actions")
    keyboard.press("Enter")
    expect(items.first).to_be_focused()
    for _item in range(items.count()):
        if keyboard.has("Cancel run"):
            break
        keyboard.press("ArrowDown")
    keyboard.focus_is_seen()
    keyboard.press("Enter")
    keyboard.in_dialog(re.compile("^Cancel"))
    keyboard.press("Escape")
    keyboard.after_dialog("More actions")
    keyboard.press("Enter", "ArrowUp", "ArrowUp")
    assert keyboard.has("Cancel run"), keyboard.focus
    keyboard.press("Enter")
    keyboard.in_dialog(re.compile("^Cancel"))
    if not keyboard.has("Reason"):
        keyboard.tab_to("Reason")
    keyboard.type("by keyboard")
    keyboard.tab_to("^Cancel run")
    keyboard.press("Enter")
    status(page, "Cancelled")
    keyboard.after_dialog("More actions")
    assert shop.status(run) == "cancelled"


def approves(keyboard: Keyboard, shop: Site) -> None:
    page = keyboard.page
    keyboard.press("g", "a")
    page.wait_for_url(re.compile("/approvals"))
    if page.get_by_role("button", name=re.compile("^All")).get_attribute("aria-pressed") != "true":
        keyboard.tab_to("^All")
        keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Publish the report")).to_be_visible()
    keyboard.tab_to("^Price")
    keyboard.type("9")
    keyboard.tab_to("^Comment")
    keyboard.type("fine")
    keyboard.tab_to("^Approve")
    keyboard.press("Enter")
    assert shop.result("key:kb-report")["result"] == "Keys for 9"


def starts_a_run(keyboard: Keyboard) -> None:
    page = keyboard.page
    keyboard.press("g", "r")
    expect(page.get_by_role("table", name="Runs")).to_be_visible()
    keyboard.tab_to("^Start run")
    keyboard.press("Enter")
    keyboard.in_dialog("Start run")
    keyboard.press("Escape")
    keyboard.after_dialog("Start run")
    keyboard.press("Enter")
    keyboard.in_dialog("Start run")
    if not keyboard.has("^Workflow"):
        keyboard.tab_to("^Workflow")
    keyboard.type("hello")
    page.wait_for_url(re.compile("start=hello"))
    expect(page.get_by_role("dialog").get_by_label(re.compile("^Name"))).to_be_visible()
    keyboard.tab_to("^Name")
    keyboard.type("keys")
    keyboard.tab_to("^Start run")
    keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    status(page, "Success")


def pauses_a_schedule(keyboard: Keyboard, shop: Site) -> None:
    page = keyboard.page
    keyboard.press("g", "s")
    expect(page.get_by_role("switch", name="early enabled")).to_be_visible()
    keyboard.tab_to("early enabled")
    keyboard.press("Space")
    expect(page.get_by_role("switch", name="early enabled")).not_to_be_checked()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    assert keyboard.has("early enabled"), "the focus stays where it was"
    assert shop.ask("GET", "/schedules/early")["state"] == "paused"
    keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    keyboard.tab_to("^Pause$")
    keyboard.press("Enter")
    keyboard.in_dialog("Pause early")
    if not keyboard.has("^Reason"):
        keyboard.tab_to("^Reason")
    keyboard.type("later")
    keyboard.press("Enter")
    keyboard.after_dialog()
    keyboard.focus_is_seen()
    assert shop.ask("GET", "/schedules/early")["paused"]["reason"] == "later"
