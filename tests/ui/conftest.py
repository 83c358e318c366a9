"""A real browser (Debian's Chromium, driven by Playwright) on a real site. Every page that a test opens must obey the policy, load from
its own origin alone and log no error."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from perdure.localpg.cluster import PrivateCluster
from perdure.server.rest.ui import built
from tests.ui.site import Site, site

CHROMIUM = os.environ.get("PERDURE_CHROMIUM", "/usr/bin/chromium")
_numbers = itertools.count(1)
WAIT_MS = 60_000
"""For what a page is to show: other tests share the machine."""
expect.set_options(timeout=WAIT_MS)
EXPECTED = re.compile(
    r"the server responded with a status of (401|403|404|409|422|429|503)|ERR_CONNECTION_(REFUSED|RESET)|ERR_SOCKET_NOT_CONNECTED|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED|ERR_CONTENT_LENGTH_MISMATCH"
)
"""Lines that Chromium itself writes for answers that a test provokes."""


@pytest.fixture(scope="module")
def browser(processes: None) -> Iterator[Browser]:
    """Not for the whole session: while Playwright is open, no other test of this process can start an event loop."""
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def shop(
    processes: None, cluster: PrivateCluster, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """One site for the tests of a file."""
    assert built(), "the web UI is not built: run `just ui-build`"
    name = f"ui_{os.getpid()}_{next(_numbers)}"
    with site(cluster.create_database(name, template=migrated_template), tmp_path_factory.mktemp("site")) as one:
        yield one
    cluster.drop_database(name)


class Visit:
    """A browser of one person, and what went wrong in it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context, self.url = context, url
        self.problems: list[str] = []
        self.tolerated = EXPECTED
        self.also: tuple[str, ...] = ()
        """Other origins that this visit may lead to, as that of an identity provider. What their pages load is their own affair."""
        self._theirs: set[str] = set()
        context.set_default_timeout(WAIT_MS)
        context.on("page", self._watch)

    def _watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.location["url"] in self._theirs:
            return
        if message.type in ("error", "warning") and not self.tolerated.search(message.text):
            self.problems.append(f"console {message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if self.also and (request.frame.url or "-").startswith(self.also):
            self._theirs.add(request.url)
        elif not request.url.startswith((self.url, "blob:", "data:", *self.also)):
            self.problems.append(f"a request to another origin: {request.url}")

    def sign_in(self, key: str) -> None:
        """As the sign-in page does."""
        answer = self.context.request.post(f"{self.url}/api/v1/session", data={"api_key": key})
        assert answer.ok, answer.text()

    def page(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.goto(self.url + path)
        return page


@pytest.fixture
def visits(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visit]]:
    made: list[Visit] = []

    def make(url: str, **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", **options)
        made.append(Visit(context, url))
        return made[-1]

    yield make
    kept = os.environ.get("PERDURE_UI_ARTIFACTS")
    for number, visit in enumerate(made):
        for place, page in enumerate(visit.context.pages):
            if kept:
                page.screenshot(path=Path(kept) / f"{request.node.name}-{number}-{place}.png")
        visit.context.close()
    problems = [problem for visit in made for problem in visit.problems]
    assert not problems, problems


@pytest.fixture
def admin(shop: Site, visits: Callable[..., Visit]) -> Visit:
    visit = visits(shop.url)
    visit.sign_in(shop.key("admin"))
    return visit


@pytest.fixture
def viewer(shop: Site, visits: Callable[..., Visit]) -> Visit:
    visit = visits(shop.url)
    visit.sign_in(shop.key("viewer"))
    return visit
