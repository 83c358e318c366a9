"""The server of `perdure dev` in this directory: it may have got another port than the usual one, and commands should find it."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

URL_DEFAULT: Final = "http://127.0.0.1:8600"
GRPC_DEFAULT: Final = "127.0.0.1:8601"
PARENTS_MAX: Final = 8


@contextmanager
def announced(directory: Path, url: str, grpc: str) -> Generator[None]:
    """While it runs, `dev` leaves a note."""
    file = _note(directory)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"url": url, "grpc": grpc, "pid": os.getpid()}))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def server_url(directory: Path) -> str:
    return _found(directory).get("url", URL_DEFAULT)


def server_grpc(directory: Path) -> str:
    return _found(directory).get("grpc", GRPC_DEFAULT)


def _found(directory: Path) -> dict[str, str]:
    """The note of a `dev` that is alive, here or above."""
    for place in [directory, *directory.parents][:PARENTS_MAX]:
        try:
            note: Any = json.loads(_note(place).read_text())
            os.kill(int(note["pid"]), 0)
            return {"url": str(note["url"]), "grpc": str(note["grpc"])}
        except PermissionError:
            continue  # somebody else's
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def _note(directory: Path) -> Path:
    return directory / ".perdure" / "dev.json"
