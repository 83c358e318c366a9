"""Files that hold flows: which ones do, and what is in them. Nothing here needs a server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.core.errors import InvalidInput
from perdure.sdk.client.flow_text import SUFFIXES, stem, text_of

if TYPE_CHECKING:  # every command that takes the name of a workflow asks whether it is a file; few go on to compile it
    from perdure.flows.compile import Compiled
    from perdure.flows.problems import DocumentProblem

KEYS: Final = frozenset({"flow", "tasks", "graph", "start"})
"""A file whose document has none of these at its top is no flow."""
IGNORED: Final = frozenset({".perdure", ".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".tox"})
FILES_MAX: Final = 1_000
"""Files of one directory that are read."""
FLOWS: Final = "flows"
"""Beside the top of a project, the directory that `perdure dev` looks into."""
_LOOKS = re.compile(r'^\s*\{?\s*"?(?:flow|tasks|graph|start)"?\s*:', re.MULTILINE)


@dataclass(frozen=True)
class FlowFile:
    """A file as it was read: a compiled flow, or problems."""

    path: Path
    text: str
    compiled: Compiled | None = None
    version: str = ""
    problems: tuple[DocumentProblem, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        assert self.compiled is not None
        return self.compiled.flow.name


def load(path: Path, name: str | None = None, *, shown: str = "") -> FlowFile:
    """Read and compile. `name` is for a document that has none; the file's own unless given. Mistakes are in `problems`."""
    from perdure.flows.compile import compile_flow, version_of
    from perdure.flows.problems import FlowError
    from perdure.flows.source import read

    text = text_of(path)
    try:
        document = read(text, name=shown or str(path))
        value = document.value
        compiled = compile_flow(document, name=name or stem(path))
    except FlowError as error:
        return FlowFile(path, text, problems=error.problems)
    return FlowFile(path, text, compiled, version_of(value), tuple(compiled.warnings), value)


def below(directory: Path) -> Iterator[Path]:
    """Every file of a directory that holds a flow, in the order of their names."""
    count = 0
    for place, names, files in os.walk(directory):
        names[:] = sorted(n for n in names if n not in IGNORED)
        for name in sorted(files):
            path = Path(place) / name
            if path.suffix not in SUFFIXES:
                continue
            count += 1
            if count > FILES_MAX:
                raise InvalidInput(f"{directory} has over FILES_MAX={FILES_MAX:,} files to look at; name a smaller one")
            if holds_flow(path):
                yield path


def of_project(directory: Path) -> list[Path]:
    """What `perdure dev` deploys: files at the top and in flows/."""
    places = [directory, directory / FLOWS]
    found = [p for place in places if place.is_dir() for p in sorted(place.iterdir()) if p.suffix in SUFFIXES]
    return [p for p in found[:FILES_MAX] if p.is_file() and holds_flow(p)]


def holds_flow(path: Path) -> bool:
    """By its top-level keys; one that cannot be read counts if it looks like a flow, so that its mistake is shown."""
    from perdure.flows.problems import FlowError
    from perdure.flows.source import read

    try:
        text = text_of(path)
    except InvalidInput:
        return False
    if not _LOOKS.search(text):
        return False
    try:
        value = read(text, name=str(path)).value
    except FlowError:
        return True
    return isinstance(value, dict) and bool(KEYS & set(value))
