"""Loading the user's code: what a worker serves and what `perdure dev` finds in a directory.

Code is inspected before it is run: a file is imported by `dev` only if it defines tasks or workflows, and not if importing it
would start a program.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType

from perdure.core.errors import InvalidInput, PerdureError
from perdure.sdk import registry
from perdure.sdk.definitions import Task, Workflow

DECORATORS = frozenset({"task", "workflow"})


class BrokenModule(PerdureError):
    """The user's code cannot be imported.

    `trace` is its traceback without the frames of Perdure.
    """

    code = "broken_module"

    def __init__(self, target: str, error: BaseException) -> None:
        super().__init__(f"{target} cannot be imported: {type(error).__name__}: {error}")
        self.trace = user_traceback(error)


@dataclass(frozen=True)
class Defined:
    """What the modules define, by name."""

    tasks: list[str]
    workflows: list[str]

    def __bool__(self) -> bool:
        return bool(self.tasks or self.workflows)

    def __str__(self) -> str:
        return " and ".join(
            f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}"
            for kind, names in (("workflow", self.workflows), ("task", self.tasks))
            if names
        )


def load(targets: Iterable[str]) -> Defined:
    """Import modules by dotted name or by file, and say what is defined then. `module:function` calls the function as well."""
    for target in targets:
        _load_one(target)
    return Defined(sorted(registry.tasks.names()), sorted(registry.workflows.names()))


def _load_one(target: str) -> None:
    name, _, attribute = target.partition(":")
    try:
        module = _import_file(Path(name)) if name.endswith(".py") else _import_name(name)
    except (KeyboardInterrupt, PerdureError):
        raise
    except BaseException as error:  # SystemExit too: a script that ends itself when it is imported
        raise BrokenModule(name, error) from error
    if not attribute:
        return
    found = getattr(module, attribute, None)
    if found is None:
        raise InvalidInput(f"{name} has no {attribute!r}. Name the module alone to serve all that it defines.")
    if callable(found) and not isinstance(found, (Task, Workflow)):
        found()


def _import_name(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if not _exists(name):
        path = Path(*name.split(".")).with_suffix(".py")
        hint = f" There is no {path} below {here} either." if not path.exists() else ""
        raise InvalidInput(f"there is no module {name!r}.{hint} Give a dotted name (shop.flows) or a file (flows.py).")
    return importlib.import_module(name)


def _exists(name: str) -> bool:
    """Whether the module is there, without taking a mistake inside its parent packages for its absence."""
    parent, _, _ = name.rpartition(".")
    if parent:
        if not _exists(parent):
            return False
        importlib.import_module(parent)
    try:
        return importlib.util.find_spec(name) is not None
    except (ValueError, ModuleNotFoundError):
        return False


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    return importlib.import_module(path.stem)


def user_traceback(error: BaseException) -> str:
    """As Python prints it, from the first frame that is the user's."""
    return "".join(traceback.format_exception(type(error), error, _first_user_frame(error.__traceback__))).rstrip()


def _first_user_frame(at: TracebackType | None) -> TracebackType | None:
    ours = str(Path(__file__))
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if file != ours and "importlib" not in file:
            return at
        at = at.tb_next
    return None


@dataclass(frozen=True)
class FoundModule:
    """The Python files of a directory that matter to `dev`."""

    modules: list[Path]
    """Define tasks or workflows, or cannot even be read: importing them will show why."""
    programs: list[Path]
    """Define some too, but run a program when they are imported."""


def discover(directory: Path) -> FoundModule:
    modules: list[Path] = []
    programs: list[Path] = []
    for path in sorted(directory.glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError):
            modules.append(path)
            continue
        if defines(tree):
            (programs if starts_something(tree) else modules).append(path)
    return FoundModule(modules, programs)


def defines(tree: ast.Module) -> bool:
    """Whether a module decorates a function with something of ours."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "perdure":
            names |= {alias.asname or alias.name for alias in node.names if alias.name in DECORATORS}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "perdure"}
    functions = (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return any(_root(d) in names for f in functions for d in f.decorator_list)


def _root(decorator: ast.expr) -> str:
    """`task`, `task(...)`, `perdure.task(...)`: the name it begins with."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    if isinstance(decorator, ast.Attribute) and decorator.attr in DECORATORS:
        decorator = decorator.value
    return decorator.id if isinstance(decorator, ast.Name) else ""


def starts_something(tree: ast.Module) -> bool:
    """`asyncio.run(...)` at module level, outside `if __name__ == "__main__"`."""
    calls = (n.value for n in tree.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call))
    return any(ast.unparse(call.func) in ("asyncio.run", "anyio.run", "uvloop.run") for call in calls)
