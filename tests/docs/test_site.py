"""The documentation site: it builds without a warning, is whole, asks no other host for anything, and can be used by everyone.

`just docs-site` builds the same. The slow part is done once for the file.
"""

from __future__ import annotations

import html
import http.server
import re
import threading
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.docs.pages import DOCS, anchors_of, blocks_of, name_of
from tests.docs.test_start import PAGES
from tests.ui.conftest import CHROMIUM
from tests.ui.test_accessibility import findings
from tools import docs_site

INDEXED = ("adr", "errors")
"""Folders whose pages are listed by a page of the navigation."""
SEEN = ("", "start/", "how-to/use-the-rest-api/", "concepts/lifecycles/", "reference/errors/", "404.html")
_MARKS = re.compile(r"```|\]\(|^\s*- \S|<p>\s*[-*] |\*\*\S")
SIZES = {"narrow": {"width": 390, "height": 844}, "wide": {"width": 1280, "height": 800}}


@pytest.fixture(scope="module")
def site(interpreter: None) -> Path:
    docs_site.build()
    return docs_site.SITE


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(site))

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(processes: None) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield one
        one.close()


class Page(HTMLParser):
    """The links, ids, images and texts of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.ids: set[str] = set()
        self.described = self.headings = 0
        self.title = ""
        self._in_title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ("img", "script") and given.get("src"):
            self.sources.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.sources.append(str(given["href"]))
        self.described += tag == "meta" and given.get("name") == "description" and bool(given.get("content"))
        self.headings += tag == "h1"
        self._in_title = tag == "title" or self._in_title

    def handle_endtag(self, tag: str) -> None:
        self._in_title = self._in_title and tag != "title"

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data


@cache
def page_of(file: Path) -> Page:
    return Page(file.read_text(encoding="utf-8"))


def target_of(site: Path, page: Path, link: str) -> Path:
    path = unquote(urlsplit(link).path)
    target = site / path.lstrip("/") if path.startswith("/") else (page.parent / path if path else page)
    target = Path(str(target.resolve()))
    return target / "index.html" if target.is_dir() else target


def built_at(site: Path, path: str) -> Path:
    """The HTML of a page of docs/."""
    page = Path(path)
    return site / (page.parent if page.name == "index.md" else page.with_suffix("")) / "index.html"


def has_heading(page: Path, fragment: str) -> bool:
    """Names that begin with two underscores are those of the theme's own script."""
    return not fragment or fragment.startswith("__") or fragment in page_of(page).ids


def test_every_page_is_in_the_navigation_and_nothing_else_is() -> None:
    listed = [entry.path for entry in docs_site.entries()]
    assert len(listed) == len(set(listed)), "a page is in the navigation twice"
    missing = [path for path in listed if not (DOCS / path).exists()]
    assert not missing, f"zensical.toml names pages that do not exist: {missing}"
    pages = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if not set(INDEXED) & set(p.relative_to(DOCS).parts)}
    assert pages == set(listed), f"add to `nav` in zensical.toml: {sorted(pages - set(listed))}"


def test_pages_that_an_index_lists_are_all_in_it() -> None:
    for folder, index in (
        (DOCS / "adr", DOCS / "decisions.md"),
        (DOCS / "reference" / "errors", DOCS / "reference" / "errors.md"),
    ):
        text = index.read_text()
        for page in folder.glob("*.md"):
            assert f"({page.relative_to(index.parent)})" in text, f"{name_of(page)} is not in {name_of(index)}"


def test_every_link_and_image_of_the_built_site_leads_somewhere(site: Path) -> None:
    broken: list[str] = []
    files = sorted(site.rglob("*.html"))
    assert len(files) > 100
    for file in files:
        page = page_of(file)
        for link in [*page.links, *page.sources]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if (
                    link in page.sources
                    or parts.scheme not in ("https", "http", "mailto")
                    or not parts.netloc + parts.path
                ):
                    broken.append(f"{file.relative_to(site)}: {link}")
                continue
            target = target_of(site, file, link)
            if not target.is_file() or not target.is_relative_to(site):
                broken.append(f"{file.relative_to(site)}: {link}")
            elif target.suffix == ".html" and not has_heading(target, unquote(parts.fragment)):
                broken.append(f"{file.relative_to(site)}: {link} (no such heading)")
    assert not broken, "\n".join(broken)


def test_anchors_are_those_of_the_markdown(site: Path) -> None:
    """Links within the repository and links to the site name a heading alike."""
    for entry in docs_site.entries():
        if entry.path == "index.md":
            continue
        built = page_of(built_at(site, entry.path)).ids
        lost = anchors_of(DOCS / entry.path) - built
        assert not lost, f"{entry.path}: {lost}"


@pytest.mark.parametrize("page", ["start.md", *PAGES])
def test_the_built_page_has_what_the_tests_type(site: Path, page: str) -> None:
    """tests/docs/test_start.py walks the Markdown: its files and commands are those of the site, with the names of the files."""
    text = built_at(site, page).read_text(encoding="utf-8")
    shown = [
        html.unescape(re.sub(r"<[^>]+>", "", code)).strip() for code in re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)
    ]
    blocks = [b for b in blocks_of(DOCS / page) if b.remark in ("file", "terminal")]
    assert blocks
    for block in blocks:
        assert block.text.strip() in shown, block.text
        assert block.remark != "file" or f'<span class="filename">{block.remark_text}</span>' in text


def test_no_page_shows_marks_of_markdown(site: Path) -> None:
    """A fence or a list that zensical does not take for one, though GitHub does."""
    shown: list[str] = []
    for file in sorted(site.rglob("*.html")):
        text = re.sub(r"<(code|pre|script|style)\b.*?</\1>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        shown += [
            f"{file.relative_to(site)}: {line.strip()[:100]}" for line in text.splitlines() if _MARKS.search(line)
        ]
    assert not shown, "\n".join(shown)


def test_each_page_has_one_heading_a_title_of_its_own_and_a_description(site: Path) -> None:
    titles: dict[str, str] = {}
    for entry in docs_site.entries():
        page = page_of(built_at(site, entry.path))
        assert page.headings == 1, f"{entry.path} has {page.headings} first headings"
        assert page.described == 1, f"{entry.path} has no description: open it with a paragraph"
        assert page.title not in titles, f"{entry.path} and {titles.get(page.title)} have the title {page.title!r}"
        titles[page.title] = entry.path


def test_llms_txt_names_every_page_as_markdown(site: Path) -> None:
    listed, whole = (site / "llms.txt").read_text(), (site / "llms-full.txt").read_text()
    assert listed.startswith("# Perdure\n\n> ")
    for entry in docs_site.entries():
        assert (site / entry.path).is_file()
        assert entry.path in ("index.md", "contents.md") or f"]({entry.path})" in listed
        assert f"<!-- {entry.path} -->" in whole
    assert "<!-- no-run" not in whole and "<!-- terminal" not in whole


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_fit_and_ask_no_other_host(browser: Browser, address: str, scheme: str, size: str) -> None:
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    foreign: list[str] = []
    errors: list[str] = []
    page.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else foreign.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    found: dict[str, list[str]] = {}
    for path in SEEN:
        page.goto(f"{address}/{path}", wait_until="networkidle")
        if problems := findings(page):
            found[path] = problems
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than the window"
    context.close()
    assert not found, "\n".join(f"{path}: {problem}" for path, problems in found.items() for problem in problems)
    assert not foreign and not errors, (foreign, errors)


def test_diagrams_are_drawn_and_the_search_finds(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport=SIZES["wide"])  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{address}/concepts/lifecycles/")
    page.wait_for_selector("div.mermaid", timeout=60_000)
    page.keyboard.press("Control+k")
    page.keyboard.type("heartbeat")
    page.get_by_role("link", name="heartbeat").or_(page.get_by_text("heartbeat", exact=False)).first.wait_for(
        timeout=60_000
    )
    context.close()


def test_the_home_page_fits_one_screen(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport=SIZES["wide"])  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address)
    for text in ("pip install", "kill -9", "60-second start", "Embed it", "Run a server", "Write only YAML"):
        box = page.locator(".md-content").get_by_text(text).first.bounding_box()
        assert box is not None and box["y"] + box["height"] <= SIZES["wide"]["height"], f"{text!r} is below the fold"
    context.close()
