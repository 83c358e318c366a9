"""Links between pages lead somewhere, and every page says when it is needed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, all_pages, anchors_of, links_of, name_of
from tests.fakes.failures import Failures


def test_links_of_all_pages_lead_somewhere() -> None:
    with Failures() as failures:
        for page in all_pages():
            for link in links_of(page):
                if not link.startswith(("https://", "http://", "mailto:")):
                    with failures.of(f"{name_of(page)} links to {link}"):
                        check_link(page, link)


def check_link(page: Path, link: str) -> None:
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page
    assert path.exists(), "which does not exist"
    assert path.is_relative_to(ROOT), "outside the repository"
    if anchor and path.suffix == ".md":
        assert anchor in anchors_of(path), "that page has no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [link.partition("#")[0] for link in links_of(page) if not link.startswith("http")]
        waiting += [(page.parent / t).resolve() for t in targets if t]
    lost = [name_of(p) for p in all_pages() if p not in seen and p.name != "README.md"]
    assert not lost, f"no page leads to {lost}"


def test_pages_open_with_a_sentence_about_their_subject() -> None:
    with Failures() as failures:
        for folder in ("compare", "concepts", "how-to", "reference"):
            for page in sorted((DOCS / folder).glob("*.md")):
                with failures.of(name_of(page)):
                    check_opening(page)


def check_opening(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    title, opening = [part.strip() for part in text.strip().split("\n\n")][:2]
    assert title.startswith("# "), f"{title!r} is no title"
    assert re.match(r"[A-Z`*\[].*\.", opening, re.DOTALL), f"it opens with {opening!r}, not with what it is about"
