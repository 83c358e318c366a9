"""docs/architecture.md names files, and layers that exist, and leaves no layer out."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "architecture.md").read_text()
SOURCE = ROOT / "src" / "perdure"
LAYERS = PAGE.partition("## Layers")[2].partition("The larger folders")[0]


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|sql))`", PAGE))
    assert len(named) > 50
    missing = [path for path in named if not ((SOURCE / path).exists() or (ROOT / path).exists())]
    assert not missing, f"docs/architecture.md names {sorted(missing)}"


def test_every_layer_has_its_row() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    first_cells = " ".join(re.findall(r"^\| (.*?) \|", LAYERS, re.MULTILINE))
    assert folders == set(re.findall(r"`(\w+)/`", first_cells))
