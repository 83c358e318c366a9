"""The example of an existing FastAPI application, before and after Perdure was added: its own tests pass in both states."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.pytest_plugin import plugin_options

SHOP = Path(__file__).parents[2] / "examples" / "fastapi_shop"
WITHIN_S = 120.0


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("state", ["before", "after"])
def test_the_tests_of_the_shop_pass(state: str, dsn: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin_options()],
        cwd=SHOP / state,
        env=environment | {"DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shop_keeps_its_tests_when_perdure_is_added() -> None:
    for name in ("conftest.py", "test_shop.py"):
        assert (SHOP / "before" / "tests" / name).read_text() == (SHOP / "after" / "tests" / name).read_text()
