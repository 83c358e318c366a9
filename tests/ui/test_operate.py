"""Schedules, dead letters, limits, workers, events, webhooks, keys and the audit log, as a person operates them."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from perdure.localpg.cluster import PrivateCluster
from tests.ui.conftest import Visit
from tests.ui.site import Site, site
from tests.ui.test_runs import status


def make_schedule(shop: Site, name: str) -> None:
    spec = {"cron": ["0 8 * * *"], "tz": "Europe/Berlin"}
    shop.ask("POST", "/schedules", {"name": name, "workflow": "hello", "spec": spec, "input": {"name": name}})


def said(page: Page, words: str) -> None:
    expect(page.get_by_text(words, exact=True).first).to_be_visible()


def actions(shop: Site) -> list[tuple[str, str]]:
    return [(one["action"], one["target"]) for one in shop.ask("GET", "/audit?limit=100")["items"]]


def test_a_schedule_is_paused_and_resumed_with_its_switch(shop: Site, admin: Visit) -> None:
    make_schedule(shop, "nightly")
    page = admin.page("/schedules?name=nightly")
    switch = page.get_by_role("switch", name="nightly enabled")
    expect(switch).to_be_checked()
    switch.click()
    expect(switch).not_to_be_checked()
    said(page, "nightly paused")
    assert shop.ask("GET", "/schedules/nightly")["state"] == "paused"
    switch.click()
    said(page, "nightly resumed")
    expect(switch).to_be_checked()
    assert shop.ask("GET", "/schedules/nightly")["state"] == "active"


def test_a_schedule_is_paused_with_a_reason_and_triggered(shop: Site, admin: Visit) -> None:
    make_schedule(shop, "weekly")
    page = admin.page("/schedules?name=weekly")
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog", name="Pause weekly")
    dialog.get_by_label("Reason").fill("the source is down")
    dialog.get_by_role("button", name="Pause weekly").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_text(re.compile("Paused by .*: the source is down"))).to_be_visible()
    paused: dict[str, Any] = shop.ask("GET", "/schedules/weekly")["paused"]
    assert paused["reason"] == "the source is down"
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    assert shop.ask("GET", "/schedules/weekly")["paused"] is None
    page.get_by_role("button", name="Trigger now").click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    status(page, "Success")
    assert {("schedule.pause", "weekly"), ("schedule.resume", "weekly"), ("schedule.trigger", "weekly")} <= set(
        actions(shop)
    )


def test_a_dead_letter_is_retried(shop: Site, admin: Visit, tmp_path: Path) -> None:
    flags = [tmp_path / "one", tmp_path / "two"]
    runs = [shop.start("mend", input={"flag": str(flag)}) for flag in flags]
    for run in runs:
        assert shop.result(run)["status"] == "failed"
    page = admin.page(f"/dead-letters?q={tmp_path.name}")
    table = page.get_by_role("grid", name="Dead letters")
    rows = table.get_by_role("row").filter(has_text="is missing")
    expect(rows).to_have_count(2)
    flags[0].touch()
    rows.filter(has_text="/one").get_by_role("checkbox").check()
    page.get_by_role("button", name="Retry 1 run").click()
    dialog = page.get_by_role("dialog", name="Retry 1 run")
    expect(dialog).to_contain_text("1 run can be retried")
    dialog.get_by_role("button", name="Retry 1 run").click()
    expect(dialog).to_contain_text("1 run retried.")
    dialog.get_by_role("button", name="Done").click()
    assert shop.result(runs[0])["status"] == "success"
    assert shop.status(runs[1]) == "failed"
    expect(rows).to_have_count(1)
    rows.get_by_role("link").last.click()
    page.wait_for_url(re.compile(f"/runs/{runs[1]}"))


def test_a_limit_is_set_changed_and_cleared(shop: Site, admin: Visit) -> None:
    page = admin.page("/limits")
    page.get_by_role("button", name="Set limit").first.click()
    dialog = page.get_by_role("dialog", name="Set limit")
    dialog.get_by_role("textbox", name="Name").fill("scarce")
    dialog.get_by_label("At a time, at most").fill("3")
    dialog.get_by_role("button", name="Set limits").click()
    row = page.get_by_role("table", name="Limits").get_by_role("row").filter(has_text="scarce")
    expect(row).to_contain_text("0 of 3")
    assert limit_of(shop, "scarce") == 3
    page.get_by_role("button", name="Change the limits of scarce").click()
    dialog = page.get_by_role("dialog", name="Limits of scarce")
    dialog.get_by_label("At a time, at most").fill("5")
    dialog.get_by_role("button", name="Set limits").click()
    expect(row).to_contain_text("0 of 5")
    page.get_by_role("button", name="Clear the limits of scarce").click()
    page.get_by_role("dialog").get_by_role("button", name="Clear limits").click()
    expect(row).to_have_count(0)
    assert limit_of(shop, "scarce") is None


def limit_of(shop: Site, name: str) -> int | None:
    items = shop.ask("GET", "/limits")["items"]
    return next((one["concurrency"] for one in items if one["name"] == name), None)


def test_the_worker_is_listed_with_its_slots(shop: Site, admin: Visit) -> None:
    found = shop.ask("GET", "/workers")["items"]
    page = admin.page("/workers")
    rows = page.get_by_role("grid", name="Workers").get_by_role("row")
    expect(rows).to_have_count(1 + len(found))
    expect(rows.nth(1)).to_contain_text(found[0]["name"])
    expect(rows.nth(1)).to_contain_text("Healthy")
    expect(page.get_by_role("region", name="Queues")).to_contain_text("default")


def test_an_event_is_emitted_and_seen(shop: Site, admin: Visit) -> None:
    page = admin.page("/events")
    page.get_by_role("button", name="Emit event").first.click()
    dialog = page.get_by_role("dialog", name="Emit event")
    dialog.get_by_label("Name").fill("order.paid")
    dialog.get_by_label("Payload").fill('{"order": 4711')
    expect(dialog.get_by_role("button", name="Emit order.paid")).to_be_disabled()
    dialog.get_by_label("Payload").fill('{"order": 4711}')
    dialog.get_by_role("button", name="Emit order.paid").click()
    expect(dialog).to_have_count(0)
    row = page.get_by_role("grid", name="Events").get_by_role("row").filter(has_text="order.paid")
    expect(row).to_contain_text("4711")
    row.get_by_role("button", name="order.paid").click()
    expect(page.get_by_role("complementary", name="Event order.paid")).to_contain_text("4711")
    sent = shop.ask("GET", "/events?name=order.paid")["items"]
    assert [one["payload"] for one in sent] == [{"order": 4711}]


def test_an_api_key_is_shown_once_works_and_is_revoked(shop: Site, admin: Visit) -> None:
    page = admin.page("/settings")
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog", name="New API key")
    dialog.get_by_label("Name", exact=False).first.fill("ci bot")
    dialog.get_by_label("Role").select_option("viewer")
    dialog.get_by_role("button", name="Create key").click()
    secret = dialog.get_by_label("API key ci bot", exact=True).input_value()
    assert secret.startswith("pd_")
    dialog.get_by_role("button", name="Done").click()
    expect(page.get_by_role("table", name="API keys").get_by_role("row").filter(has_text="ci bot")).to_contain_text(
        "Valid"
    )
    assert secret not in page.content(), "it is shown once"
    assert asks_with(shop, secret) == 200
    page.get_by_role("button", name="Revoke ci bot").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke ci bot").click()
    expect(page.get_by_role("table", name="API keys").get_by_role("row").filter(has_text="ci bot")).to_contain_text(
        "Revoked"
    )
    assert asks_with(shop, secret) == 401
    page.goto(f"{shop.url}/audit?q=ci bot")
    table = page.get_by_role("table", name="Audit log")
    expect(table.get_by_role("row").filter(has_text="key.create").first).to_be_visible()
    expect(table.get_by_role("row").filter(has_text="key.revoke").first).to_be_visible()


def asks_with(shop: Site, secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return int(shop.http.get(f"{shop.url}/api/v1/runs", headers=headers).status_code)


@pytest.fixture
def sealed(processes: None, cluster: PrivateCluster, migrated_template: str, tmp_path: Path) -> Iterator[Site]:
    """A site that can keep secrets."""
    key = tmp_path / "secret.key"
    key.write_bytes(base64.b64encode(os.urandom(32)))
    key.chmod(0o600)
    name = f"ui_sealed_{os.getpid()}"
    dsn = cluster.create_database(name, template=migrated_template)
    with site(dsn, tmp_path, worker=False, PERDURE_SECRET_KEY_FILE=str(key)) as one:
        yield one
    cluster.drop_database(name)


def test_a_webhook_is_created_and_deleted(sealed: Site, visits: Callable[..., Visit]) -> None:
    visit = visits(sealed.url)
    visit.sign_in(sealed.key("admin"))
    page = visit.page("/events")
    page.get_by_role("button", name="New webhook").click()
    dialog = page.get_by_role("dialog", name="New webhook")
    dialog.get_by_label("Name").fill("tills")
    dialog.get_by_label("Event that a request becomes").fill("till.paid")
    dialog.get_by_role("button", name="Create webhook").click()
    secret = dialog.get_by_label("Secret that signs requests", exact=True).input_value()
    dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("table", name="Webhooks").get_by_role("row").filter(has_text="tills")
    expect(row).to_be_visible()
    assert secret and secret not in page.content()
    assert [one["name"] for one in sealed.ask("GET", "/webhooks")["items"]] == ["tills"]
    page.get_by_role("button", name="More about tills").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete tills").click()
    expect(row).to_have_count(0)
    assert sealed.ask("GET", "/webhooks")["items"] == []
