"""The style as a test: sizes, names and words of the source are counted and compared with a ceiling.

A ceiling may only go down: a commit that lowers a count lowers its ceiling. A change that needs a higher one needs another design.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from tests.fakes.failures import Failures

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "perdure"
GENERATED: Final = SOURCE / "wire" / "pb"

FILE_LINES_MAX: Final = 500
CLASS_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 70
PARAMETERS_MAX: Final = 7
WORDS: Final = re.compile(
    r"\b(whoever|somebody|nobody|anybody|whatever|whomever|whichever|someone|everybody)\b", re.IGNORECASE
)
OTHER_PROCESSES: Final = {"harness", "tracing_processes", "typing"}
"""Folders of tests whose tasks and workflows are defined in processes of their own."""

CEILINGS: Final = {
    "files over 500 lines": 0,
    "classes over 400 lines": 0,
    "functions over 70 lines": 0,
    "functions with more than 7 parameters": 8,
    "class names with more than one definition": 7,
    "wiring after construction": 0,
    "fmt: skip and fmt: off": 0,
    "pronouns in the source": 3,
    "pronouns in SQL": 0,
    "pronouns in the documentation": 60,
    "sleeps in tests": 75,
    "definitions of tests with one name": 11,
}


@cache
def trees() -> dict[Path, ast.Module]:
    files = [file for file in sorted(SOURCE.rglob("*.py")) if GENERATED not in file.parents]
    return {file: ast.parse(file.read_text()) for file in files}


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for kind in kinds:
        yield from nodes_by_kind()[kind]


@cache
def nodes_by_kind() -> dict[type[ast.AST], list[tuple[Path, ast.AST]]]:
    """One walk over all sources, for every count."""
    found: dict[type[ast.AST], list[tuple[Path, ast.AST]]] = defaultdict(list)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            found[type(node)].append((file, node))
    return found


def place(file: Path, line: int = 0) -> str:
    return f"{file.relative_to(ROOT)}:{line}" if line else str(file.relative_to(ROOT))


def length(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]


def long_files() -> list[str]:
    return [place(file) for file in trees() if len(file.read_text().splitlines()) > FILE_LINES_MAX]


def long_classes() -> list[str]:
    return [place(file, n.lineno) for file, n in nodes(ast.ClassDef) if length(n) > CLASS_LINES_MAX]  # type: ignore[attr-defined]


def long_functions() -> list[str]:
    found = nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    return [place(file, n.lineno) for file, n in found if length(n) > FUNCTION_LINES_MAX]  # type: ignore[attr-defined]


def many_parameters() -> list[str]:
    return [
        place(file, node.lineno)
        for file, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and parameters(node) > PARAMETERS_MAX
    ]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    bound = bool(positional) and positional[0].arg in ("self", "cls")
    return len(positional) + len(given.kwonlyargs) - bound


def repeated_class_names() -> list[str]:
    homes: dict[str, list[str]] = defaultdict(list)
    for file, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        homes[node.name].append(place(file))
    return [f"{name}: {', '.join(files)}" for name, files in homes.items() if len(files) > 1]


RECORDS: Final = {"Struct", "NamedTuple", "TypedDict", "Enum", "IntEnum", "BaseModel", "BaseException", "Exception"}
COLLECTIONS: Final = {"dict", "list", "set", "deque", "tuple", "frozenset"}


@cache
def parts() -> frozenset[str]:
    """Classes with behaviour: neither records nor exceptions."""
    known = {node.name: node for _, node in nodes(ast.ClassDef) if isinstance(node, ast.ClassDef)}

    def is_record(name: str) -> bool:
        return name in RECORDS or (name in known and any(is_record(base) for base in bases(known[name])))

    return frozenset(name for name in known if not is_record(name))


def bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def wired_as(annotation: ast.expr | None, value: ast.expr | None = None) -> str:
    """An attribute or parameter is a `callback`, a `part` that is not there yet, or `data`."""
    names = {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)} if annotation is not None else set[str]()
    if isinstance(value, ast.Lambda) or "Callable" in names:
        return "callback"
    is_missing = value is None or (isinstance(value, ast.Constant) and value.value is None)
    return "part" if is_missing and names & parts() and not names & COLLECTIONS else "data"


@cache
def attributes() -> dict[str, dict[str, set[Path]]]:
    """Name of an attribute that a class declares -> what it is wired as -> modules of the classes."""
    found: dict[str, dict[str, set[Path]]] = defaultdict(lambda: defaultdict(set))
    for file, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        for one in [*node.body, *(n for init in inits for n in ast.walk(init))]:
            if isinstance(one, ast.AnnAssign):
                name = one.target.attr if isinstance(one.target, ast.Attribute) else ast.unparse(one.target)
                found[name][wired_as(one.annotation, one.value)].add(file)
    return found


def stored(node: ast.AST) -> list[ast.Attribute]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]


def late_wiring() -> list[str]:
    """Parts are built in the order of their dependencies and get all they need when they are built. Counted are

    - a callback that is assigned outside of the module of its class;
    - a part that is missing at first and is assigned outside of the folder of its class (within it, it is state of that part);
    - a method that does nothing but store a callback or a part.

    A name that another class has for data is left out: which class is meant cannot be read from the source.
    """
    return [*assigned_elsewhere(), *setters()]


def assigned_elsewhere() -> Iterator[str]:
    for file, target in nodes(ast.Attribute):
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
            declared = attributes().get(target.attr, {})
            if ast.unparse(target.value) in ("self", "cls") or "data" in declared:
                continue
            callbacks, missing = declared.get("callback", set()), declared.get("part", set())
            if (callbacks and file not in callbacks) or (missing and file.parent not in {m.parent for m in missing}):
                yield f"{place(file, target.lineno)}: {ast.unparse(target)}"


def setters() -> Iterator[str]:
    for file, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        for method in node.body:
            if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
                continue
            given = {a.arg: wired_as(a.annotation) for a in [*method.args.args, *method.args.kwonlyargs]}
            body = [s for s in method.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            values = [ast.unparse(s.value) for s in body if isinstance(s, ast.Assign) and stored(s)]
            if len(values) == len(body) and any(given.get(v, "data") != "data" for v in values):
                yield f"{place(file, method.lineno)}: {node.name}.{method.name}"


def occurrences(pattern: re.Pattern[str], files: Iterator[Path]) -> list[str]:
    return [
        f"{place(file, number)}: {word}"
        for file in sorted(files)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for word in pattern.findall(line)
    ]


def sources() -> Iterator[Path]:
    return iter(trees())


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from (ROOT / "docs").rglob("*.md")


def suite() -> Iterator[Path]:
    folders = [folder for folder in (ROOT / "tests").iterdir() if folder.name != "azurite"]
    files = chain((ROOT / "tests").glob("*.py"), *(folder.rglob("*.py") for folder in folders))
    seed = ROOT / "tests" / "ui" / "seed"  # a program that fills a server; how long its tasks take is its data
    return (file for file in files if file != Path(__file__) and seed not in file.parents)


def repeated_definitions() -> list[str]:
    """Tests of one process share its registry: a name with two definitions is served by no worker, and a run that needs it waits for ever."""
    homes: dict[tuple[str, str], set[Path]] = defaultdict(set)
    for file in suite():
        if OTHER_PROCESSES.isdisjoint(file.parts):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    for kind, name in defined(node):
                        homes[kind, name].add(file)
    return [f"{kind} {name}: {', '.join(map(place, files))}" for (kind, name), files in homes.items() if len(files) > 1]


def defined(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    """(task or workflow, name)."""
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        given = {k.arg: k.value for k in decorator.keywords} if isinstance(decorator, ast.Call) else {}
        kind = ast.unparse(called).rpartition(".")[2]
        if kind in ("task", "workflow"):
            yield kind, ast.literal_eval(given["name"]) if "name" in given else function.name


COUNTS: Final = {
    "files over 500 lines": long_files,
    "classes over 400 lines": long_classes,
    "functions over 70 lines": long_functions,
    "functions with more than 7 parameters": many_parameters,
    "class names with more than one definition": repeated_class_names,
    "wiring after construction": late_wiring,
    "fmt: skip and fmt: off": lambda: occurrences(re.compile(r"# fmt: (?:skip|off)"), chain(sources(), suite())),
    "pronouns in the source": lambda: occurrences(WORDS, sources()),
    "pronouns in SQL": lambda: occurrences(WORDS, SOURCE.rglob("*.sql")),
    "pronouns in the documentation": lambda: occurrences(WORDS, pages()),
    "definitions of tests with one name": repeated_definitions,
    "sleeps in tests": lambda: occurrences(re.compile(r"(?<!\bwf\.)\bsleep\("), suite()),
}


@pytest.mark.keep
def test_counts_are_at_most_their_ceilings() -> None:
    with Failures() as failures:
        for what, ceiling in CEILINGS.items():
            with failures.of(what):
                found = COUNTS[what]()
                assert len(found) <= ceiling, "\n".join([f"{len(found)}, at most {ceiling}", *found])


def test_every_count_has_a_ceiling() -> None:
    assert CEILINGS.keys() == COUNTS.keys()
