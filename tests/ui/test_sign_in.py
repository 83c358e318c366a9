"""Signing in with a key, staying signed in, signing out; links that lead to where they say."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.ui.conftest import Visit
from tests.ui.site import Site


def test_a_link_leads_through_sign_in_to_its_run(shop: Site, visits: Callable[..., Visit]) -> None:
    run = shop.start("hello", input={"name": "ada"})
    shop.result(run)
    visit = visits(shop.url)
    page = visit.page(f"/runs/{run}")
    page.get_by_label("API key").fill("pd_wrongwrong12_0000000000000000000000000000000000000000000")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("no such API key")
    page.get_by_label("API key").fill(shop.key("operator"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="hello")).to_be_visible()
    assert page.url == f"{shop.url}/runs/{run}"
    page.reload()
    expect(page.get_by_role("heading", name="hello")).to_be_visible()
    cookie = next(c for c in visit.context.cookies() if c["name"].endswith("perdure_session"))
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == "" and "pd_" not in str(page.evaluate("JSON.stringify(localStorage)"))


def test_signing_out_ends_the_session_everywhere(shop: Site, admin: Visit) -> None:
    page, other = admin.page("/runs"), admin.page("/workflows")
    cookies = admin.context.cookies()
    page.get_by_role("button", name="Signed in as").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    other.reload()
    expect(other.get_by_label("API key")).to_be_visible()
    admin.context.add_cookies(cookies)  # a copy of the old cookie opens nothing
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_revoked_key_ends_its_sessions(shop: Site, visits: Callable[..., Visit]) -> None:
    made = shop.ask("POST", "/api-keys", {"name": "soon gone", "role": "viewer"})
    visit = visits(shop.url)
    visit.sign_in(made["secret"])
    page = visit.page("/runs")
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    shop.ask("DELETE", f"/api-keys/{made['id']}")
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()
