"""The starter project of `perdure dev`, as code and as a flow. The files beside this one are copied unchanged."""

from __future__ import annotations

from pathlib import Path

HELLO = "hello.py"
HELLO_WORKFLOW = "hello"
HELLO_YAML = "hello.yaml"
HELLO_FLOW = "greetings"


def hello_text(name: str = HELLO) -> str:
    return (Path(__file__).parent / name).read_text()


def write_hello(directory: Path, name: str = HELLO) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(hello_text(name))
    return path
