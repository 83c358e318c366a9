"""The first workflow people see. `hello.py` beside this file is written into their directory as it is."""

from __future__ import annotations

from pathlib import Path

HELLO = "hello.py"
HELLO_WORKFLOW = "hello"


def hello_text() -> str:
    return (Path(__file__).parent / HELLO).read_text()


def write_hello(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / HELLO
    path.write_text(hello_text())
    return path
