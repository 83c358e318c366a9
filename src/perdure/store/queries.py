"""The named queries of a package's sql/*.sql files. Each is one statement, prepared once per connection by the driver."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


@cache
def queries(package: str = "perdure.store") -> dict[str, str]:
    """Every query by name. Two of the same name are a mistake."""
    found: dict[str, str] = {}
    for file in sorted((resources.files(package) / "sql").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))[1:]
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two queries are called {name}"
            found[name] = text.strip().rstrip(";")
    return found
