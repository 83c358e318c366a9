"""What is about to be deployed: modules with workflows and tasks, and files with flows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput
from perdure.flows.changes import nodes_of
from perdure.flows.model import Flow
from perdure.flows.source import read
from perdure.programs import flow_files, modules
from perdure.sdk import registry
from perdure.sdk.client.flow_text import is_file_name
from perdure.sdk.definitions import Workflow


class FlowTarget(msgspec.Struct, frozen=True):
    file: str
    flow: Flow
    document: Any
    """flows.source.document.Document, for the places of nodes."""

    def line_of(self, label: str) -> int:
        """The line of the node that a label such as `ship` or `each[2].ship` belongs to; 1 if it has none."""
        nodes = nodes_of(self.document.value)
        found = [key for key in nodes if label == key or label.startswith((f"{key}[", f"{key}.", f"{key}/"))]
        if not found:
            return 1
        key = max(found, key=len)
        paths = (("tasks", key), ("graph", "nodes", key), ("nodes", key))
        line: int = max(self.document.place(path, key=True).line for path in paths)
        return line


class Targets(msgspec.Struct, frozen=True):
    workflows: dict[str, Workflow[..., Any]]
    tasks: frozenset[str]
    flows: dict[str, FlowTarget]
    has_code: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self.workflows, *self.flows}))


def load(targets: Iterable[str]) -> Targets:
    """Import modules, packages and Python files; read flow files and folders. Raises BrokenModule, and InvalidInput for what is neither."""
    code: list[str] = []
    files: list[Path] = []
    for target in targets:
        path = Path(target)
        if path.is_dir():
            found = [str(p) for p in modules.discover(path).modules]
            flows = list(flow_files.below(path))
            if not found and not flows:
                raise InvalidInput(f"{target} has no module with workflows and no flow")
            code += found
            files += flows
        elif is_file_name(target):
            files.append(path)
        else:
            code.append(target)
    defined = modules.load(code) if code else modules.Defined([], [])
    workflows = {name: registry.workflows.get(name) for name in defined.workflows}
    flows_by_name = {flow.flow.name: flow for flow in map(_flow, files)}
    if not workflows and not flows_by_name:
        raise InvalidInput(f"{', '.join(targets)}: no workflow and no flow is defined there")
    return Targets(workflows, frozenset(defined.tasks), flows_by_name, bool(code))


def _flow(path: Path) -> FlowTarget:
    loaded = flow_files.load(path)
    if loaded.compiled is None:
        first = loaded.problems[0]
        raise InvalidInput(f"{path}:{first.line}: {first.message}; perdure validate {path} lists all problems")
    return FlowTarget(str(path), loaded.compiled.flow, read(loaded.text, name=str(path)))
