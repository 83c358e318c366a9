"""The pytest plugin, in pytest sessions of their own: fixtures for async and sync tests, and the marker."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.fakes.pytest_plugin import PLUGIN, plugin_options

ROOT = Path(__file__).parents[2]

DEFINITIONS = """
import pytest
from perdure import Signal, task, workflow

never = Signal("plugin_never", int)
go = Signal("plugin_go", int)
kept = {}

@task(name="plugin_double")
async def double(n: int) -> int:
    return 2 * n

@workflow(name="plugin_patient")
async def patient(n: int) -> int:
    try:
        await never.next(timeout="1d")
    except TimeoutError:
        return await double(n)

@workflow(name="plugin_waits")
async def waits() -> int:
    return await go.next()

@task(name="plugin_keep")
async def keep() -> None:
    kept["it"] = 1

@task(name="plugin_find")
async def find() -> int:
    return kept["it"]

@workflow(name="plugin_forgets")
async def forgets() -> int:
    await keep()
    return await find()
"""

ASYNC = """
async def test_an_async_test(perdure_env):
    mock = perdure_env.mock(double, returns=7)
    assert await perdure_env.run(patient, 3) == 7
    assert [call.args for call in mock.calls] == [(3,)]
    handle = await waits.start()
    await go.send(handle.id, 5)
    assert await handle.result() == 5

@pytest.mark.perdure_crash_everywhere
async def test_a_run_survives_crashes(perdure_env):
    assert await perdure_env.run(patient, 3) == 6

@pytest.mark.perdure_crash_everywhere(crashes_max=50)
async def test_a_run_that_does_not(perdure_env):
    with pytest.raises(AssertionError, match="plugin_forgets: after a crash that followed event"):
        await perdure_env.run(forgets)
"""

SYNC = """
def test_a_sync_test(perdure_sync_env):
    with perdure_sync_env.mock(double, calls=lambda n: n + 1) as mock:
        assert perdure_sync_env.run(patient, 3) == 4
    mock.assert_called()
    assert perdure_sync_env.run(patient, 3) == 6
    before = perdure_sync_env.now
    handle = perdure_sync_env.start(waits)
    perdure_sync_env.advance("1d")
    assert (perdure_sync_env.now - before).days == 1
    perdure_sync_env.call(go.send(handle.id, 5))
    assert handle.result() == 5

@pytest.mark.perdure_crash_everywhere(crashes_max=3)
def test_a_sync_test_with_crashes(perdure_sync_env):
    assert perdure_sync_env.run(patient, 3) == 6
"""


def run_pytest(directory: Path, tests: str, *options: str, ini: str = "") -> tuple[int, str]:
    (directory / "test_it.py").write_text(DEFINITIONS + tests)
    (directory / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n{ini}")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:schemathesis",
            *plugin_options(),
            *options,
        ],
        cwd=directory,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "PYTEST_"))},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def marked(tests: str, plugin: str) -> str:
    return tests.replace("async def test", f"@pytest.mark.{plugin}\nasync def test")


@pytest.mark.usefixtures("interpreter")
def test_async_tests_of_pytest_asyncio_and_of_anyio_get_an_environment_and_sync_tests_another(tmp_path: Path) -> None:
    of_anyio = marked(ASYNC, "anyio").replace("def test_", "def test_anyio_")
    loop_scope = "asyncio_default_fixture_loop_scope = function\n"
    code, out = run_pytest(
        tmp_path, marked(ASYNC, "asyncio") + of_anyio + SYNC, ini=f"asyncio_mode = strict\n{loop_scope}"
    )
    assert code == 0, out
    assert "8 passed" in out


@pytest.mark.usefixtures("interpreter")
def test_anyio_alone_is_enough_and_without_either_the_fixture_says_what_it_needs(tmp_path: Path) -> None:
    of_anyio = marked(ASYNC, "anyio") + "\ndef test_not_async(perdure_env): ...\n"
    code, out = run_pytest(tmp_path, of_anyio, "-p", "no:asyncio")
    assert code == 1, out
    assert "3 passed, 1 error" in out
    assert "perdure_env is for async tests and needs pytest-asyncio or anyio; use perdure_sync_env" in out


def test_the_package_names_the_plugin() -> None:
    with (ROOT / "packages" / "core" / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["entry-points"]["pytest11"] == {"perdure": PLUGIN}
    assert importlib.import_module(PLUGIN).pytest_configure


@pytest.mark.usefixtures("interpreter")
def test_importing_the_plugin_imports_nothing_heavy() -> None:
    """pytest imports it in every session, also of projects that do not use Perdure in the tests that run."""
    code = f"""
    import sys, pytest
    before = set(sys.modules)
    import {PLUGIN}
    print(*sorted(set(sys.modules) - before))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["perdure", "perdure.core", "perdure.core.version", "perdure.testing", PLUGIN]
