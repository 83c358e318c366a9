"""What a new version of a document changes, in terms of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

_BODIES: Final = ("tasks", "graph", "start", "nodes", "edges")
_MISSING: Final = object()


class DocumentChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of nodes, in the order of the documents, and the other top-level keys that differ."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.other)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> DocumentChanges:
    before, after = nodes_of(old), nodes_of(new)
    other = [
        key
        for key in dict.fromkeys((*old, *new))
        if key not in _BODIES and old.get(key, _MISSING) != new.get(key, _MISSING)
    ]
    if _ways(old) != _ways(new):
        other.append("edges")
    return DocumentChanges(
        added=tuple(k for k in after if k not in before),
        removed=tuple(k for k in before if k not in after),
        changed=tuple(k for k in after if k in before and before[k] != after[k]),
        other=tuple(other),
    )


def nodes_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The nodes of a document as written, by key; nothing where it is not written right."""
    for found in (document.get("tasks"), _graph(document).get("nodes")):
        if isinstance(found, Mapping):
            return cast(Mapping[str, Any], found)
    return {}


def _ways(document: Mapping[str, Any]) -> tuple[Any, Any]:
    graph = _graph(document)
    return graph.get("start"), graph.get("edges")


def _graph(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document.get("graph")
    return cast(Mapping[str, Any], found) if isinstance(found, Mapping) else document
