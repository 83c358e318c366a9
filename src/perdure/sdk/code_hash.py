"""The version of a Python workflow: a hash of its source and of the source that it imports from its own package.

    function, its module --static imports--> modules of the same top-level package --> sorted by name --> SHA-256

Laws:

1. Nothing is imported or executed: imports are read from the syntax tree, wherever they stand, and modules are found as files.
2. The hash depends on texts and module names alone: not on paths, line endings, byte order marks, bytecode or the order of imports.
   Comments and docstrings count.
3. The module of the workflow has no name here: it has the same hash as `__main__` and as a module that a worker loads by its path.

What a program takes from other packages is not part of it: pin those in a lock file.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from perdure.core.limits import CODE_MODULES_MAX, CODE_VERSION_CHARS

_CACHED_MODULES = 4_096


def code_hash(fn: Callable[..., Any]) -> str:
    """The hash of a workflow's code. A function without source, such as one typed at a prompt, is hashed by what it was compiled to."""
    state = hashlib.sha256()
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    home = _file_of(module)
    for part in (_source_of(fn), *_module_texts(module, home)):
        data = part.encode(errors="surrogatepass")
        state.update(len(data).to_bytes(8, "big") + data)
    return state.hexdigest()


def short(hash: str) -> str:
    """How a version without a label is called."""
    return hash[:CODE_VERSION_CHARS]


def _source_of(fn: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(fn).replace("\r\n", "\n")
    except (OSError, TypeError):
        return "\0".join(_compiled(fn.__code__))


def _compiled(code: CodeType) -> Iterator[str]:
    yield repr((code.co_code, code.co_names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _compiled(constant)
        else:
            yield repr(constant)


def _file_of(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file and str(file).endswith(".py") else None


def _module_texts(module: Any, home: Path | None) -> list[str]:
    """Its own text, then name and text of every other module, by name."""
    if home is None or (own := _read(home)) is None:
        return []
    name = _name_of(module)
    top = sys.modules.get(name.partition(".")[0])
    package = _Package(name.partition(".")[0], [Path(p) for p in getattr(top, "__path__", ())]) if "." in name else None
    if package is None:
        return [own[0]]
    found = package.reached_from(name, own)
    found.pop(name, None)
    return [own[0], *(text for named in sorted(found.items()) for text in named)]


def _name_of(module: Any) -> str:
    """Also of a module that runs as `python -m`."""
    spec = getattr(module, "__spec__", None)
    name: str = spec.name if spec is not None else module.__name__
    return name.removesuffix(".__main__") if name.endswith(".__main__") and module.__name__ != "__main__" else name


Parsed = tuple[str, tuple[tuple[int, str, tuple[str, ...]], ...]]
"""A text and its imports: (level, module, names)"""


class _Package:
    """The modules of one top-level package, as files."""

    def __init__(self, top: str, roots: list[Path]) -> None:
        self._top, self._roots = top, roots

    def reached_from(self, name: str, own: Parsed) -> dict[str, str]:
        """Module -> text. Level by level and in the order of their names, so that the limit leaves out the same ones everywhere."""
        found: dict[str, str] = {name: own[0]}
        level: dict[str, Parsed] = {name: own, **self._parents(name)}
        found.update({module: parsed[0] for module, parsed in level.items()})
        while level and len(found) < CODE_MODULES_MAX:
            wanted = {m for module, parsed in level.items() for m in self._imports(module, parsed)} - found.keys()
            level = {}
            for module in sorted(wanted)[: CODE_MODULES_MAX - len(found)]:
                if (parsed := self._module(module)) is not None:
                    level[module] = parsed
            found.update({module: parsed[0] for module, parsed in level.items()})
        return found

    def _parents(self, name: str) -> dict[str, Parsed]:
        """The packages around a module: importing it executes them."""
        parts = name.split(".")
        around = (".".join(parts[:n]) for n in range(1, len(parts)))
        return {package: parsed for package in around if (parsed := self._module(package)) is not None}

    def _imports(self, module: str, parsed: Parsed) -> Iterator[str]:
        for level, target, names in parsed[1]:
            base = self._absolute(module, level, target)
            if base.partition(".")[0] != self._top:
                continue
            parts = base.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))
            yield from (f"{base}.{name}" for name in names)

    def _absolute(self, module: str, level: int, target: str) -> str:
        if not level:
            return target
        is_package = self._file(module) is not None and self._file(module, only_package=True) is not None
        around = module.split(".")
        around = around[: len(around) - level + is_package]
        return ".".join([*around, *([target] if target else [])])

    def _module(self, name: str) -> Parsed | None:
        file = self._file(name)
        return _read(file) if file is not None else None

    def _file(self, name: str, *, only_package: bool = False) -> Path | None:
        inner = name.split(".")[1:]
        for root in self._roots:
            package = root.joinpath(*inner, "__init__.py")
            if package.is_file():
                return package
            if inner and not only_package:
                module = root.joinpath(*inner[:-1], f"{inner[-1]}.py")
                if module.is_file():
                    return module
        return None


@lru_cache(_CACHED_MODULES)
def _read(file: Path) -> Parsed | None:
    """None for a file that cannot be read, or is no Python."""
    try:
        with tokenize.open(file) as opened:
            text = opened.read()
        tree = ast.parse(text)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    return text, tuple(_imports_of(tree))


def _imports_of(tree: ast.AST) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", tuple(alias.name for alias in node.names)
