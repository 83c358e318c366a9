"""Starting, watching and acting on runs, as a person does it in a browser."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.fakes.waiting import until_sync
from tests.ui.conftest import Visit
from tests.ui.site import TICK, Site


def status(page: Page, word: str) -> None:
    """What the head of the run's page says, without a reload."""
    expect(page.get_by_role("region", name="Run", exact=True).locator(".st.pill")).to_have_text(word)


def more(page: Page, act: str) -> None:
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name=act).click()


def open_run(admin: Visit, run: str, query: str = "") -> Page:
    return admin.page(f"/runs/{run}{query}")


@pytest.mark.keep
def test_a_run_is_started_from_the_form_and_watched_to_its_end(shop: Site, admin: Visit) -> None:
    page = admin.page("/runs")
    page.locator("header").get_by_role("button", name="Start run").click()
    dialog = page.get_by_role("dialog", name="Start run")
    dialog.get_by_label("Workflow").select_option("talk")
    dialog.get_by_label("lines").fill("20")
    dialog.get_by_role("button", name="Start run").click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    page.evaluate("window.still = 'here'")
    status(page, "Running")
    status(page, "Success")
    assert page.evaluate("window.still") == "here", "the page was loaded anew"
    page.get_by_role("tab", name="Input and output").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("20")


def test_an_input_that_does_not_fit_is_refused_in_the_form(shop: Site, admin: Visit) -> None:
    page = admin.page("/runs?start=hello")
    dialog = page.get_by_role("dialog", name="Start run")
    dialog.get_by_role("button", name="Start run").click()
    expect(dialog.get_by_text("Correct the fields that are marked")).to_be_visible()
    dialog.get_by_label(re.compile("^Name")).fill("ada")
    dialog.get_by_role("button", name="Start run").click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    status(page, "Success")


def test_new_runs_gather_in_the_pill(shop: Site, admin: Visit) -> None:
    shop.result(shop.start("hello", input={"name": "first"}))
    page = admin.page("/runs")
    table = page.get_by_role("table", name="Runs")
    expect(table.get_by_role("row").nth(1)).to_be_visible()
    top = table.get_by_role("row").nth(1).inner_text()
    for name in "abc":
        shop.result(shop.start("hello", input={"name": name}))
    expect(page.get_by_role("button", name=re.compile("3 new runs"))).to_be_visible()
    assert table.get_by_role("row").nth(1).inner_text() == top, "a row moved by itself"
    page.get_by_role("button", name=re.compile("new runs")).click()
    expect(page.get_by_role("button", name=re.compile("new runs"))).to_have_count(0)
    assert table.get_by_role("row").nth(1).inner_text() != top


def test_query_and_chips_are_one_state_in_the_address(shop: Site, admin: Visit) -> None:
    shop.result(shop.start("hello", input={"name": "x"}, key="findme-1"))
    page = admin.page("/runs")
    box = page.get_by_role("textbox", name="Query")
    box.fill("workflow = hello and status = success")
    box.press("Enter")
    expect(page.get_by_role("button", name=re.compile("Remove filter Status"))).to_be_visible()
    page.get_by_role("button", name=re.compile("Remove filter Status")).click()
    expect(box).to_have_value("workflow = hello")
    page.reload()
    expect(page.get_by_role("textbox", name="Query")).to_have_value("workflow = hello")
    box.fill("stauts = failed")
    box.press("Enter")
    expect(page.get_by_text("did you mean 'status'").first).to_be_visible()


@pytest.mark.keep
def test_approve_on_the_approvals_page(shop: Site, admin: Visit) -> None:
    run = shop.start("report", input={"title": "October"})
    page = open_run(admin, run)
    page.get_by_role("link", name="Approve").click()
    page.wait_for_url(re.compile(r"/approvals"))
    expect(page.get_by_text("1284").or_(page.get_by_text("1,284")).first).to_be_visible()
    page.get_by_label("Price").fill("7")
    page.get_by_role("button", name=re.compile("^Approve")).click()
    assert shop.result(run)["result"] == "October for 7"
    page.goto(f"{shop.url}/runs/{run}")
    status(page, "Success")


def asked_to_pay(shop: Site, run: str, amount: str) -> None:
    """Until the run asks it."""
    until_sync(
        lambda: [a["details"] for a in shop.ask("GET", f"/approvals?run={run}")["items"]] == [{"amount": amount}]
    )


def retry_with_another_question(shop: Site, run: str, flag: Path) -> None:
    shop.ask("POST", f"/runs/{run}/signals/steer", "go")
    assert shop.result(run)["status"] == "failed"
    flag.touch()
    shop.ask("POST", f"/runs/{run}/retry")
    asked_to_pay(shop, run, "1,000,000")


@pytest.mark.parametrize("sends", ["at once", "after the page has noticed"])
def test_an_approval_is_sent_for_the_question_on_the_page(shop: Site, admin: Visit, tmp_path: Path, sends: str) -> None:
    flag = tmp_path / "flag"
    run = shop.start("refund", input={"flag": str(flag)})
    asked_to_pay(shop, run, "5")
    page = admin.page(f"/approvals?whose=all&item={run}/pay")
    decision = page.get_by_role("region", name="Decision")
    expect(page.get_by_role("cell", name="5", exact=True)).to_be_visible()
    decision.get_by_label("Comment").fill("only 5")
    if sends == "at once":
        page.route(
            "**/api/v1/approvals?**", lambda route: route.abort("connectionrefused")
        )  # the page keeps showing what it has read
        retry_with_another_question(shop, run, flag)
        with page.expect_response(re.compile("/approve$")) as sent:
            decision.get_by_role("button", name=re.compile("^Approve")).click()
        assert (sent.value.status, sent.value.json()["code"]) == (409, "conflict")
        expect(decision.get_by_text("changed since you read it")).to_be_visible()
        page.unroute("**/api/v1/approvals?**")
    else:
        retry_with_another_question(shop, run, flag)
    expect(page.get_by_role("cell", name="1,000,000")).to_be_visible()
    expect(decision.get_by_role("alert")).to_contain_text("asks something else now")
    expect(decision.get_by_role("button", name=re.compile("^Approve"))).to_have_count(0)
    assert shop.ask("GET", f"/approvals/{run}/pay")["votes"] == []
    decision.get_by_role("button", name="Decide on the new question").click()
    expect(decision.get_by_label("Comment")).to_have_value("")
    decision.get_by_role("button", name=re.compile("^Approve")).click()
    assert shop.result(run)["result"] == "paid"


def test_send_a_signal(shop: Site, admin: Visit) -> None:
    run = shop.start("listen")
    page = open_run(admin, run)
    status(page, "Running")
    expect(page.get_by_text("Waiting on")).to_be_visible()
    page.get_by_role("button", name="Signal", exact=True).click()
    dialog = page.get_by_role("dialog", name="Send a signal")
    dialog.get_by_label("Name").fill("steer")
    dialog.get_by_label("Value").fill('"north"')
    dialog.get_by_role("button", name="Send signal").click()
    status(page, "Success")
    assert shop.result(run)["result"] == ["north"]


def test_cancel_and_terminate(shop: Site, admin: Visit) -> None:
    for act, word in (("Cancel run", "Cancelled"), ("Terminate run", "Cancelled")):
        run = shop.start("sleepy")
        page = open_run(admin, run)
        status(page, "Running")
        more(page, act)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("not needed")
        dialog.get_by_role("button", name=act).click()
        status(page, word)
        assert shop.status(run) == "cancelled"


def test_pause_and_resume(shop: Site, admin: Visit) -> None:
    run = shop.start("listen")
    page = open_run(admin, run)
    more(page, "Pause run")
    page.get_by_role("dialog").get_by_role("button", name="Pause run").click()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_have_count(0)
    shop.ask("POST", f"/runs/{run}/signals/steer", "go")
    status(page, "Success")


@pytest.mark.keep
def test_retry_failed(shop: Site, admin: Visit, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    run = shop.start("mend", input={"flag": str(flag)})
    page = open_run(admin, run)
    status(page, "Failed")
    expect(page.get_by_text("is missing").first).to_be_visible()
    flag.touch()
    page.get_by_role("button", name=re.compile("Retry failed")).click()
    status(page, "Success")


def test_fork_from_a_task(shop: Site, admin: Visit, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    run = shop.start("mend", input={"flag": str(flag)})
    shop.result(run)
    page = open_run(admin, run)
    status(page, "Failed")
    page.get_by_role("treeitem", name=re.compile("fragile")).click()
    flag.touch()
    # Where to fork is found in the history; until then there is nothing to confirm.
    page.route(re.compile(r"/history\?"), lambda route: (TICK.wait(0.5), route.continue_()))
    page.get_by_role("button", name="Fork from here").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: run not in url and "/runs/" in url)
    status(page, "Success")


def test_logs_follow_and_the_selection_is_in_the_address(shop: Site, admin: Visit) -> None:
    run = shop.start("talk", input={"lines": 40, "every_s": 0.1})
    page = open_run(admin, run, "?tab=logs")
    logs = page.get_by_role("log", name="Logs")
    expect(logs).to_contain_text("line 3 of 40")
    expect(logs).to_contain_text("line 30 of 40")
    status(page, "Success")
    page.get_by_role("tab", name="Timeline").click()
    page.get_by_role("treeitem", name=re.compile("chatter")).click()
    expect(
        page.get_by_role("complementary", name="Selected task").get_by_role("heading", name="chatter")
    ).to_be_visible()
    other = admin.page(page.url.removeprefix(shop.url))
    expect(
        other.get_by_role("complementary", name="Selected task").get_by_role("heading", name="chatter")
    ).to_be_visible()


def test_bulk_retry_of_500_with_progress(shop: Site, admin: Visit, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with ThreadPoolExecutor(8) as pool:
        runs = list(
            pool.map(lambda _: shop.start("mend", input={"flag": str(flag)}, attributes={"lot": "many"}), range(500))
        )
    shop.result(runs[-1])
    page = admin.page('/runs?q=attr.lot = "many" and status = failed')
    expect(page.get_by_text(re.compile(r"of 500 runs"))).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="mend").first).to_be_visible()
    flag.touch()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.get_by_role("button", name=re.compile("Select all .*matching")).click()
    page.get_by_role("toolbar", name="Bulk actions").get_by_role("button", name=re.compile("Retry")).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Retry .*500 runs")).click()
    page.get_by_role("link", name="Open job").click()
    page.wait_for_url(re.compile("/bulk-jobs/"))
    expect(page.get_by_text(re.compile("500")).first).to_be_visible()
    expect(page.get_by_role("progressbar", name="Runs handled")).to_have_attribute(
        "aria-valuenow", "500", timeout=60_000
    )
    ended = [shop.result(run)["status"] for run in runs[::50]]
    assert ended == ["success"] * len(ended)
