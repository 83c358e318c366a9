"""Every error code is explained, by words that the source really prints."""

from __future__ import annotations

import ast
import re

import pytest

from perdure.core.errors import error_classes
from perdure.server import error_guide
from tests.cli.live import perdure as command
from tests.docs.error_messages import SOURCE, can_be_printed
from tests.docs.pages import DOCS
from tests.fakes.failures import Failures

CODES = sorted(error_guide.explanations())


def test_the_guide_knows_every_module_with_error_classes() -> None:
    """Each class with a code of its own, even if no other test of this process has imported it."""
    error_guide.classes()
    known = {cls.__name__ for cls in error_classes()}
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text()
        for node in ast.parse(text).body if "\n    code = " in text else ():
            if not isinstance(node, ast.ClassDef) or not known & {getattr(base, "id", "") for base in node.bases}:
                continue
            if any(isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "code" for part in node.body):
                assert node.name in known, f"add {file.relative_to(SOURCE)} to error_guide._HOMES: it has {node.name}"


def test_every_code_of_a_class_is_explained() -> None:
    error_guide.classes()
    known = {cls.code for cls in error_classes() if cls.__module__.startswith("perdure.")}
    missing = known - set(CODES)
    assert not missing, f"add to src/perdure/server/errors.toml: {sorted(missing)}"
    assert len(CODES) > 60


@pytest.mark.keep
def test_codes_are_explained_with_messages_of_the_source() -> None:
    with Failures() as failures:
        for code in CODES:
            with failures.of(code):
                check_explanation(code)


def check_explanation(code: str) -> None:
    found = error_guide.explanation(code)
    assert found.why.endswith("."), f"`why` is no sentence: {found.why!r}"
    end = re.search(r"[.!?]\s*(See \[.*\]\(.*\)\.)?$", found.do.strip())
    assert end, f"`do` ends with neither a sentence nor a link: {found.do!r}"
    if not found.yours:
        assert can_be_printed(code, found.example.strip()), f"the source does not make this message: {found.example}"


def test_links_of_explanations_lead_to_pages() -> None:
    with Failures() as failures:
        for code in CODES:
            for path in error_guide.without_links(error_guide.explanation(code).do)[1]:
                with failures.of(f"{code} links to {path}"):
                    assert (DOCS / path.partition("#")[0]).exists(), "which does not exist"
            with failures.of(code):
                page = error_guide.error_page(code)
                assert (DOCS / page).exists(), f"{page} does not exist: run `uv run python docs/generate.py`"


def test_explain_prints_the_page_of_a_code() -> None:
    done = command("explain", "run_already_exists")
    assert done.code == 0
    assert "on_conflict" in done.out and "reference/errors/run_already_exists" in done.out


def test_explain_suggests_the_code_that_was_meant() -> None:
    done = command("explain", "run_faild")
    assert done.code == 4 and "did you mean run_failed?" in done.err


def test_an_error_of_a_command_ends_with_where_it_is_explained() -> None:
    done = command("explain", "nothing_like_it")
    assert done.err.rstrip().endswith("perdure explain not_found")
    there = command("explain", "nothing_like_it", PERDURE_DOCS_URL="https://docs.example.org/perdure/")
    assert there.err.rstrip().endswith("https://docs.example.org/perdure/reference/errors/not_found/")
