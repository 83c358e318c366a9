"""The first pages of a newcomer, walked as they stand: each file saved, each command typed, each output compared.

PERDURE_WALKS=all walks them all. Nothing is installed: `tests/smoke.py` and `python -m tests.docs.walks` with `--install` do that.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.localpg.cluster import PrivateCluster
from tests.docs.pages import DOCS, blocks_of
from tests.docs.walks import Walk
from tests.ui.site import free_port

ALL = os.environ.get("PERDURE_WALKS") == "all"
PAGES = ("start/embed.md", "start/server.md", "start/yaml.md", "how-to/use-the-rest-api.md")
"""`start.md` only with PERDURE_WALKS=all: tests/cli/test_dev.py and tests/docs/test_first_minute.py do the same."""


@pytest.fixture
def directory(processes: None, open_directory: Callable[..., Path]) -> Iterator[Path]:
    """With a private PostgreSQL of its own, which ends with the test."""
    made = open_directory()
    yield made
    if (data := made / ".perdure" / "pg").exists():
        PrivateCluster(data).stop("immediate")


@pytest.mark.parametrize("page", [*PAGES, *(["start.md"] if ALL else [])])
def test_a_first_page_can_be_walked(page: str, directory: Path) -> None:
    ports = {port: str(free_port()) for port in ("8600", "8601", "8080")}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "PYTEST_"))}
    environment = kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_STATE_HOME": str(directory / "state"),
        "TERM": "xterm",
        "NO_COLOR": "1",
    }
    if page == "start/server.md":  # elsewhere commands find the `perdure dev` of their directory by themselves
        environment["PERDURE_URL"] = f"http://127.0.0.1:{ports['8600']}"
    addresses = f"--http 127.0.0.1:{ports['8600']} --grpc 127.0.0.1:{ports['8601']}"

    def change(text: str) -> str:
        text = re.sub(r"^perdure (dev|server)\b", rf"perdure \1 {addresses}", text)
        text = re.sub(r"^perdure worker\b", f"perdure worker --server 127.0.0.1:{ports['8601']}", text)
        return re.sub(r"\b(8600|8601|8080)\b", lambda found: ports[found[1]], text)

    walk = Walk(DOCS / page, directory, environment, install=lambda command: "")
    walk.change = change
    shown: list[str] = []
    walk.run(shown.append)
    assert len(shown) > 5


def test_the_home_page_and_the_start_show_one_program() -> None:
    """Without the lines that only one of them has room for."""
    programs = []
    for page in ("index.md", "start.md"):
        (block,) = [b for b in blocks_of(DOCS / page) if b.remark_text == "survive.py"]
        text = re.sub(r"\s*#.*", "", block.text).replace('if __name__ == "__main__":\n    ', "")
        programs.append([line for line in text.splitlines() if line.strip()])
    assert programs[0] == programs[1]
