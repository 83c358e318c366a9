"""Chooses the files of perdure-core: all of src/perdure but the folders that the package `perdure` adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ELSEWHERE = ("bench", "cli", "mcp", "programs", "server")
"""Folders of the package `perdure`, as listed in its pyproject.toml."""


class CoreFiles(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # src itself is on the path
            return
        inside = Path(self.root, "src")  # in an sdist
        source = (inside if inside.is_dir() else Path(self.root).parents[1] / "src") / "perdure"
        target = "perdure" if self.target_name == "wheel" else "src/perdure"
        for path in sorted(source.rglob("*")):
            place = path.relative_to(source)
            if path.is_file() and place.parts[0] not in ELSEWHERE and "__pycache__" not in place.parts:
                build_data["force_include"][str(path)] = f"{target}/{place.as_posix()}"
