"""Signing in through an identity provider, another process with pages of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import expect

from perdure.localpg.cluster import PrivateCluster
from tests.ui.conftest import Visit
from tests.ui.site import READY_S, Site, free_port, site
from tests.ui.test_runs import status

CLIENT = "perdure-pages"
LENA = {"sub": "lena", "name": "Lena Koch", "perdure_role": "admin", "perdure_namespace": "*"}


@contextlib.contextmanager
def provider(log: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port)]
    with (
        log.open("wb") as said,
        subprocess.Popen([*command, "--user-claims", json.dumps(LENA)], stdout=said, stderr=said) as process,
    ):
        try:
            issuer = f"http://localhost:{port}"
            wait_for(f"{issuer}/.well-known/openid-configuration", log)
            yield issuer
        finally:
            process.kill()


def wait_for(address: str, log: Path) -> None:
    end = time.monotonic() + READY_S
    with httpx2.Client(transport=httpx2.HTTPTransport(retries=5), timeout=120) as client:
        while time.monotonic() < end:
            with contextlib.suppress(httpx2.HTTPError):
                if client.get(address).status_code == 200:
                    return
    raise AssertionError(log.read_text())


@pytest.fixture
def issuer(processes: None, tmp_path: Path) -> Iterator[str]:
    with provider(tmp_path / "provider.log") as one:
        yield one


@pytest.fixture
def office(
    processes: None, cluster: PrivateCluster, migrated_template: str, tmp_path: Path, issuer: str
) -> Iterator[Site]:
    """A site whose people sign in through the provider."""
    name = f"ui_oidc_{os.getpid()}"
    settings = {
        "PERDURE_OIDC_ISSUER": issuer,
        "PERDURE_OIDC_AUDIENCE": CLIENT,
        "PERDURE_OIDC_CLIENT_ID": CLIENT,
        "PERDURE_OIDC_CLIENT_SECRET": "any",
        "PERDURE_OIDC_NAME": "Example ID",
    }
    with site(cluster.create_database(name, template=migrated_template), tmp_path, **settings) as one:
        yield one
    cluster.drop_database(name)


def test_a_link_leads_through_the_provider_to_its_run(office: Site, issuer: str, visits: Callable[..., Visit]) -> None:
    run = office.start("hello", input={"name": "ada"})
    office.result(run)
    visit = visits(office.url)
    visit.also = (issuer,)
    page = visit.page(f"/runs/{run}?tab=io")
    page.get_by_role("link", name="Sign in with Example ID").click()
    page.wait_for_url(f"{issuer}/**")
    page.locator("input[name=sub]").fill("lena")
    page.locator("input[name=sub]").press("Enter")
    page.wait_for_url(f"{office.url}/runs/{run}?tab=io")
    status(page, "Success")
    expect(page.get_by_role("tab", name="Input and output")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("button", name="Signed in as")).to_contain_text("Lena Koch")
    assert page.evaluate("document.cookie") == ""
    page.reload()
    status(page, "Success")
    page.goto(f"{office.url}/audit")
    row = page.get_by_role("row").filter(has_text="session.create")
    expect(row).to_contain_text("lena")
    page.get_by_role("button", name="Signed in as").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_role("link", name="Sign in with Example ID")).to_be_visible()
