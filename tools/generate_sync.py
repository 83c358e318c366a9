"""Writes sync_handles.py and sync_surface.py of src/perdure/sdk/client: the async clients in a blocking form. `just generate-sync`.

The async classes are the only place where a method, its types and its documentation are written.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CLIENT: Final = ROOT / "src" / "perdure" / "sdk" / "client"

SYNC: Final = {
    "Handle": "SyncHandle",
    "BulkHandle": "SyncBulkHandle",
    "ScheduleClient": "SyncScheduleClient",
    "VersionClient": "SyncVersionClient",
    "ApprovalClient": "SyncApprovalClient",
    "ClientBase": "SyncClientBase",
}
OUTPUTS: Final = {
    "sync_handles.py": {"handles.py": "Handle", "bulk_jobs.py": "BulkHandle"},
    "sync_surface.py": {
        "schedules.py": "ScheduleClient",
        "versions.py": "VersionClient",
        "approvals.py": "ApprovalClient",
        "base.py": "ClientBase",
    },
}
"""File -> modules and the class of each that it has the blocking form of."""
LEFT_OUT: Final = {"loop"}
KEPT: Final = {"Handle": ("id", "key"), "BulkHandle": ("id",)}
"""Plain attributes."""
GENERIC: Final = {"Handle": "R_co"}

HEADER: Final = '''"""The methods of the clients, blocking. Generated from the async ones by `just generate-sync`: change those, not this file."""

from __future__ import annotations

'''
TYPE_VARIABLES: Final = """
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")
R_co = TypeVar("R_co", covariant=True)

"""


def imports(output: str, trees: dict[str, ast.Module]) -> str:
    """Those of the sources; ruff removes what is not used."""
    lines = {
        ast.unparse(node)
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ImportFrom | ast.Import) and getattr(node, "module", "") != "__future__"
    }
    for name, tree in trees.items():
        module = f"perdure.sdk.client.{name.removesuffix('.py')}"
        lines |= {f"from {module} import {n.name}" for n in tree.body if isinstance(n, ast.ClassDef)}
    lines |= {
        "from collections.abc import Iterator",
        "from typing import Generic, ParamSpec, TypeVar",
        "from perdure.sdk.client.loop_calls import LoopCalls",
    }
    if output != "sync_handles.py":
        lines.add("from perdure.sdk.client.sync_handles import SyncBulkHandle, SyncHandle")
    return "\n".join(sorted(lines)) + "\n"


def sync_type(annotation: str) -> str:
    text = re.sub(r"\bAsyncIterator\b", "Iterator", annotation)
    return re.sub(rf"\b({'|'.join(SYNC)})\b(?=\[|$)", lambda m: SYNC[m[1]], text)


def wrapped(annotation: str, call: str) -> str:
    """The expression that calls the async method and turns what it returns into its blocking form."""
    if annotation.startswith("AsyncIterator"):
        return f"self._loop.iterate({call})"
    answer = f"self._loop.call({call})"
    kind = annotation.split("[")[0]
    return f"{SYNC[kind]}(self._loop, {answer})" if kind in SYNC else answer


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = function.args
    out = [a.arg for a in given.args[1:]]
    out += [f"*{given.vararg.arg}"] if given.vararg else []
    out += [f"{a.arg}={a.arg}" for a in given.kwonlyargs]
    out += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return ", ".join(out)


def documentation(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(function, clean=False)
    if text is None:
        return ""
    return f'"""{text.replace("async for ", "for ").replace("await ", "")}"""'


def method(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    assert function.returns is not None, f"{function.name} has no return type"
    decorators = [ast.unparse(d) for d in function.decorator_list]
    returned = ast.unparse(function.returns)
    for decorator in decorators:
        yield f"    @{decorator}"
    yield f"    def {function.name}({ast.unparse(function.args)}) -> {sync_type(returned)}:"
    doc = documentation(function)
    if doc:
        yield f"        {doc}"
    if decorators == ["overload"]:
        yield "        ..."
    elif decorators == ["property"]:
        yield f"        return {SYNC[returned]}(self._loop, self._client.{function.name})"
    else:
        yield f"        return {wrapped(returned, f'self._client.{function.name}({arguments(function)})')}"
    yield ""


def is_public(name: str) -> bool:
    return not name.startswith("_") and name not in LEFT_OUT


def surface(node: ast.ClassDef) -> Iterator[str]:
    name, kind = SYNC[node.name], GENERIC.get(node.name)
    base, of = (f"(Generic[{kind}])", f"{node.name}[{kind}]") if kind else ("", node.name)
    yield f"class {name}{base}:"
    yield f'    """`{node.name}`, blocking."""'
    yield ""
    yield f"    def __init__(self, loop: LoopCalls, client: {of}) -> None:"
    yield "        self._loop, self._client = loop, client"
    for attribute in KEPT.get(node.name, ()):
        yield f"        self.{attribute} = client.{attribute}"
    yield ""
    if node.name in KEPT:
        yield "    def __repr__(self) -> str:"
        yield f'        return f"{name}({{self.id}})"'
        yield ""
    for function in node.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(function.name):
            yield from method(function)
    yield ""


def generated(output: str) -> str:
    sources = OUTPUTS[output]
    trees = {name: ast.parse((CLIENT / name).read_text()) for name in sources}
    parts = [HEADER, imports(output, trees), TYPE_VARIABLES]
    for name, wanted in sources.items():
        parts += ["\n".join(surface(n)) for n in trees[name].body if isinstance(n, ast.ClassDef) and n.name == wanted]
    return _formatted("\n".join(parts), CLIENT / output)


def _formatted(text: str, path: Path) -> str:
    for command in (["check", "--fix-only", "--quiet"], ["format"]) * 2:
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


if __name__ == "__main__":
    for output in OUTPUTS:
        (CLIENT / output).write_text(generated(output))
