"""Kinds and paths of the API."""

from __future__ import annotations

from typing import Any, NamedTuple

Object = dict[str, Any]


class Resource(NamedTuple):
    group: str
    plural: str
    kind: str
    is_namespaced: bool
    subresources: frozenset[str]

    @property
    def full(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"


JOBS = Resource("batch", "jobs", "Job", True, frozenset({"status"}))
PODS = Resource("", "pods", "Pod", True, frozenset({"status", "binding", "log"}))
NODES = Resource("", "nodes", "Node", False, frozenset({"status"}))
NAMESPACES = Resource("", "namespaces", "Namespace", False, frozenset())
RESOURCES = {(r.group, r.plural): r for r in (JOBS, PODS, NODES, NAMESPACES)}


class Target(NamedTuple):
    """What a path is about."""

    resource: Resource
    namespace: str
    """Empty: of all of them, or it has none."""
    name: str
    subresource: str


class Key(NamedTuple):
    resource: Resource
    namespace: str
    name: str


def key_of(resource: Resource, obj: Object) -> Key:
    return Key(resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def parse_path(path: str) -> Target | None:
    """None: the server has nothing there."""
    match path.strip("/").split("/"):
        case ["api", "v1", *rest]:
            return _parse("", rest)
        case ["apis", "batch", "v1", *rest]:
            return _parse("batch", rest)
    return None


def _parse(group: str, parts: list[str]) -> Target | None:
    namespace = ""
    if len(parts) >= 3 and parts[0] == "namespaces":
        _, namespace, *parts = parts
    resource = RESOURCES.get((group, parts[0])) if 0 < len(parts) <= 3 else None
    _, name, subresource = [*parts, "", ""][:3]
    if resource is None or (subresource and subresource not in resource.subresources):
        return None
    is_placed = resource.is_namespaced == bool(namespace)
    return Target(resource, namespace, name, subresource) if is_placed or not (name or namespace) else None
