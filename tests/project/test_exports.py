"""What `perdure` exports, and that importing it costs next to nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import time

import pytest

import perdure

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


@pytest.mark.parametrize("name", perdure.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(perdure, name) is not None


def test_exports_are_sorted_unique_and_all_listed_by_dir() -> None:
    assert sorted(perdure.__all__) == sorted(set(perdure.__all__))
    assert set(perdure.__all__) <= set(dir(perdure))


def test_every_name_comes_from_where_the_table_says() -> None:
    for module, names in perdure._HOME.items():
        for name in names:
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    assert {n for names in perdure._HOME.values() for n in names} | {"wf"} == set(perdure.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        perdure.nonsense  # noqa: B018


def test_star_import_brings_exactly_the_exports() -> None:
    found = _python("from perdure import *; print(*sorted(n for n in dir() if not n.startswith('__')))").stdout.split()
    assert found == sorted(perdure.__all__)


def test_importing_perdure_loads_nothing_heavy() -> None:
    loaded = _python("import sys, perdure; print(*sys.modules)").stdout.split()
    assert not [m for m in loaded for h in HEAVY if m == h or m.startswith(f"{h}.")]


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


def test_importing_perdure_takes_little_time() -> None:
    began = time.monotonic()
    report = _python("import perdure", "-X", "importtime").stderr
    elapsed_s = time.monotonic() - began
    line = next(line for line in report.splitlines() if line.endswith(" perdure"))
    own_us = int(line.split("|")[1])
    assert own_us < IMPORT_S_MAX * 1e6 / 4, line
    assert elapsed_s < 10 * IMPORT_S_MAX
