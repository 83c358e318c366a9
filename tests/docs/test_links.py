"""Links between pages lead somewhere, and every page says when it is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, all_pages, anchors_of, links_of, name_of


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in links_of(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name_of(page)} links to {link}, which does not exist"
        assert path.is_relative_to(ROOT), f"{name_of(page)} links to {link}, outside the repository"
        if anchor and path.suffix == ".md":
            assert anchor in anchors_of(path), f"{name_of(page)} links to {link}; that page has no such heading"


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


PAGES = sorted(
    page for folder in ("compare", "concepts", "how-to", "reference") for page in (DOCS / folder).glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_opens_with_a_sentence_about_its_subject(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    title, opening = [part.strip() for part in text.strip().split("\n\n")][:2]
    assert title.startswith("# ")
    assert re.match(r"[A-Z`*\[].*\.", opening, re.DOTALL), f"{name_of(page)} should open with what it is about"
