"""What `perdure` exports, and that importing it costs next to nothing."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Protocol

import pytest

import perdure
from perdure import errors
from perdure.core.errors import error_classes
from tests.fakes.failures import Failures

HEAVY = (
    "asyncpg",
    "typer",
    "rich",
    "pydantic",
    "click",
    "psutil",
    "hypothesis",
    "uvloop",
    "perdure.store",
    "perdure.engine",
)
IMPORT_S_MAX = 2.0
"""Generous: the interpreter itself takes a tenth of this. It is there to catch a heavy import, not to measure."""


def _python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_every_exported_name_can_be_imported() -> None:
    with Failures() as failures:
        for name in perdure.__all__:
            with failures.of(name):
                assert getattr(perdure, name) is not None


def test_exports_are_sorted_unique_and_all_listed_by_dir() -> None:
    assert sorted(perdure.__all__) == sorted(set(perdure.__all__))
    assert set(perdure.__all__) <= set(dir(perdure))


def test_every_name_comes_from_where_the_table_says() -> None:
    for name, module in perdure._MODULES.items():
        found = getattr(perdure, name)
        assert found is (
            sys.modules[f"{module}.{name}"] if name in ("errors", "wf") else vars(sys.modules[module])[name]
        )


def test_type_checkers_read_the_same_table() -> None:
    stub = ast.parse(Path(perdure.__file__).with_suffix(".pyi").read_text())
    found = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert found == perdure._MODULES


def test_the_root_has_few_names_and_no_exceptions() -> None:
    assert len(perdure.__all__) <= 52
    kinds = [getattr(perdure, name) for name in perdure.__all__]
    assert not [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseException)]


def test_errors_exports_every_exception_under_its_public_name() -> None:
    assert errors.__all__ == sorted(set(errors.__all__))
    exceptions = [getattr(errors, name) for name in errors.__all__ if name != "Failure"]
    assert {kind.__module__ for kind in exceptions} == {"perdure.errors"}
    assert set(exceptions) >= {c for c in error_classes() if c.__module__ == "perdure.errors"}
    assert all(kind.__doc__ for kind in exceptions)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        perdure.nonsense  # noqa: B018


@pytest.mark.usefixtures("interpreter")
def test_star_import_brings_exactly_the_exports() -> None:
    found = _python("from perdure import *; print(*sorted(n for n in dir() if not n.startswith('__')))").stdout.split()
    assert found == sorted(perdure.__all__)


@pytest.mark.usefixtures("interpreter")
def test_importing_perdure_loads_nothing_heavy() -> None:
    loaded = _python("import sys, perdure; print(*sys.modules)").stdout.split()
    assert not [m for m in loaded for h in HEAVY if m == h or m.startswith(f"{h}.")]


@pytest.mark.usefixtures("interpreter")
def test_defining_workflows_needs_no_database_driver_and_no_command_line() -> None:
    code = """
        import sys
        from perdure import task, workflow, wf, Signal, Promise, State, Retry
        @task(retry=Retry(5))
        def double(n: int) -> int: return 2 * n
        @workflow
        async def flow(n: int) -> int: return await double(n)
        print(*sys.modules)
    """
    loaded = _python(code).stdout.split()
    assert not [m for m in loaded for h in HEAVY if m == h or m.startswith(f"{h}.")]


@pytest.mark.usefixtures("interpreter")
def test_importing_perdure_takes_little_time() -> None:
    began = time.monotonic()
    report = _python("import perdure", "-X", "importtime").stderr
    elapsed_s = time.monotonic() - began
    line = next(line for line in report.splitlines() if line.endswith(" perdure"))
    own_us = int(line.split("|")[1])
    assert own_us < IMPORT_S_MAX * 1e6 / 4, line
    assert elapsed_s < 10 * IMPORT_S_MAX


SDK = (
    "approvals",
    "definitions",
    "flow_control",
    "flows",
    "mapping",
    "messages",
    "options",
    "schedules",
    "updates",
    "wf",
)


def test_every_public_function_of_the_sdk_has_a_docstring() -> None:
    with Failures() as failures:
        for module in SDK:
            with failures.of(f"perdure.sdk.{module}"):
                missing = without_docstring(module)
                assert not missing, f"no docstring: {missing}"


def without_docstring(module: str) -> list[str]:
    home = importlib.import_module(f"perdure.sdk.{module}")
    own = {k: v for k, v in vars(home).items() if getattr(v, "__module__", "") == home.__name__ and k[0] != "_"}
    classes = [c for c in own.values() if inspect.isclass(c) and not issubclass(c, Protocol)]  # type: ignore[arg-type]
    members = [(f"{c.__name__}.{k}", v) for c in classes for k, v in vars(c).items() if k[0] != "_" and callable(v)]
    return [k for k, v in [*own.items(), *members] if callable(v) and not inspect.getdoc(v)]
