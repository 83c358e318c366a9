"""Generated pages are those the generator would write today, and leave nothing out."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import perdure
from perdure.cli.commands import COMMANDS
from perdure.core import limits
from tests.docs.pages import DOCS, ROOT, name_of


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.keep
@pytest.mark.usefixtures("interpreter")
def test_generated_pages_are_up_to_date(generator: ModuleType) -> None:
    stale = [name_of(path) for path, text in generator.pages().items() if path.read_text() != text]
    assert not stale, f"{', '.join(stale)}: run `uv run python docs/generate.py`"


def test_every_error_class_and_code_has_its_row(generator: ModuleType) -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    for cls in generator.public_errors():
        assert f"`{cls.__name__}` | [`{cls.code}`](errors/{cls.code}.md) |" in page
    for code in generator.error_guide.explanations():
        assert f"[`{code}`](errors/{code}.md)" in page


def test_every_limit_has_its_row() -> None:
    page = (DOCS / "reference" / "limits.md").read_text()
    names = [name for name in vars(limits) if name.isupper()]
    assert len(names) > 10
    for name in names:
        assert f"| `{name}` |" in page


def test_every_exported_name_is_in_the_reference() -> None:
    text = "".join((DOCS / "reference" / f"{page}.md").read_text() for page in ("sdk", "errors", "settings"))
    missing = [name for name in perdure.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"docs/reference says nothing about {missing}"


def test_every_command_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    missing = [name for name in COMMANDS if f"perdure {name}" not in page]
    assert not missing, f"docs/reference/cli.md says nothing about {missing}"


def test_every_table_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "sql.md").read_text()
    migrations = (ROOT / "src" / "perdure" / "store" / "migrations").glob("*.sql")
    tables = [t for m in migrations for t in re.findall(r"create table perdure\.(\w+) \(", m.read_text())]
    assert len(tables) > 5
    missing = [t for t in tables if f"`{t}`" not in page]
    assert not missing, f"docs/reference/sql.md says nothing about {missing}"
