"""Editing the definition of a flow: problems at their place, the fix, the diff, publishing."""

from __future__ import annotations

import re
from typing import Final

from playwright.sync_api import Locator, Page, expect

from tests.ui.conftest import Visit
from tests.ui.site import Site
from tests.ui.test_runs import status

FLOW: Final = """\
flow: greeting
input:
  name: {type: string, default: world}
tasks:
  hail:
    value: "Hello, ${ input.name }"
  shout:
    depends_on: [hail]
    value: "${ upper(input.name) }"
output: "${ hail }"
"""


def deploy(shop: Site, name: str) -> str:
    source = FLOW.replace("flow: greeting", f"flow: {name}")
    return str(shop.ask("POST", "/workflows/deploy", {"source": source})["version"])


def open_editor(admin: Visit, name: str) -> tuple[Page, Locator]:
    page = admin.page(f"/workflows/{name}")
    page.get_by_role("tab", name="Definition").click()
    text = page.get_by_role("textbox", name="Definition in YAML")
    expect(text).to_contain_text("depends_on: [hail]")
    return page, text


def end_of_line(page: Page, text: Locator, words: str) -> None:
    text.locator(".cm-line", has_text=words).click()
    page.keyboard.press("End")


def test_a_mistake_is_shown_at_its_line_mended_and_published(shop: Site, admin: Visit) -> None:
    before = deploy(shop, "greeting")
    page, text = open_editor(admin, "greeting")
    publish = page.get_by_role("button", name="Publish")
    expect(publish).to_be_disabled()
    end_of_line(page, text, "depends_on: [hail]")
    for key in ("ArrowLeft", "Backspace", "Backspace"):
        page.keyboard.press(key)
    page.keyboard.type("ll")
    line = text.locator(".cm-line.yl-bad")
    expect(line).to_have_count(1)
    expect(line).to_contain_text(re.compile(r"depends_on: \[hall\].*did you mean"))
    expect(publish).to_be_disabled()
    expect(publish).to_have_attribute("title", "Fix the problem first")
    foot = page.locator(".edit-foot")
    expect(foot).to_contain_text("1 problem")
    expect(foot).to_contain_text("8:18")
    line.get_by_text("hail", exact=True).click()
    expect(line).to_have_count(0)
    expect(page.get_by_text("Published", exact=True)).to_be_visible()  # as it was
    _change_and_publish(page, text)
    expect(page.get_by_text(re.compile("^Published [0-9a-f]+"))).to_be_visible()
    now = shop.ask("GET", "/workflows/greeting")
    assert now["version"] != before
    expect(publish).to_be_disabled()
    page.reload()
    expect(text).to_contain_text("Good day")
    run = shop.start("greeting", input={"name": "ada"})
    assert shop.result(run)["result"] == "Good day, ada"
    page.goto(f"{shop.url}/runs/{run}")
    status(page, "Success")
    assert shop.ask("GET", f"/runs/{run}")["version"] == now["version"]


def _change_and_publish(page: Page, text: Locator) -> None:
    end_of_line(page, text, "Hello, ")
    page.keyboard.press("Shift+Home")
    page.keyboard.type('value: "Good day, ${ input.name }"')
    expect(text.locator(".cm-line", has_text="Good day")).to_have_text('    value: "Good day, ${ input.name }"')
    publish = page.get_by_role("button", name="Publish")
    expect(publish).to_have_attribute("title", "View the diff first")
    expect(publish).to_be_disabled()
    page.get_by_role("button", name="View diff").click()
    dialog = page.get_by_role("dialog", name="Changes of the draft")
    expect(dialog).to_contain_text("Hello, ${ input.name }")
    expect(dialog).to_contain_text("Good day, ${ input.name }")
    expect(dialog).to_contain_text("The draft is valid and can be published.")
    expect(dialog.locator("dd", has_text="hail")).to_be_visible()
    dialog.get_by_role("button", name="Back to the draft").click()
    expect(publish).to_be_enabled()
    publish.click()


def test_completion_offers_the_keys_of_the_schema_and_names_of_tasks(shop: Site, admin: Visit) -> None:
    deploy(shop, "completed")
    page, text = open_editor(admin, "completed")
    end_of_line(page, text, "upper(input.name)")
    page.keyboard.press("Enter")
    page.keyboard.type("ret")
    options = page.get_by_role("listbox").get_by_role("option").locator(".cm-completionLabel")
    expect(options.get_by_text("retry", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    for _key in "ret":
        page.keyboard.press("Backspace")
    page.keyboard.type("tim")
    expect(options.get_by_text("timeout", exact=True)).to_be_visible()
    page.wait_for_timeout(100)  # the popup ignores keys in the moment in which it opens
    page.keyboard.press("Enter")
    expect(text.locator(".cm-line", has_text="timeout")).to_have_text(re.compile(r"^    timeout: ?"))
    end_of_line(page, text, "depends_on: [hail]")
    page.keyboard.press("ArrowLeft")
    page.keyboard.type(", ")
    page.keyboard.press("Control+Space")
    expect(options.get_by_text("hail", exact=True)).to_be_visible()


def test_a_draft_survives_a_reload_and_can_be_discarded(shop: Site, admin: Visit) -> None:
    deploy(shop, "drafted")
    page, text = open_editor(admin, "drafted")
    end_of_line(page, text, "flow: drafted")
    page.keyboard.press("Enter")
    page.keyboard.type("description: a draft")
    expect(page.get_by_text("Valid", exact=True)).to_be_visible()
    page.reload()
    expect(text).to_contain_text("description: a draft")
    page.get_by_role("button", name="Discard").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard the draft").click()
    expect(text).not_to_contain_text("description")
    assert "description: a draft" not in str(shop.ask("GET", "/workflows/drafted"))
