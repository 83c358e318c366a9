"""The pytest plugin: environments as fixtures.

    perdure_env        an open `TestEnv`, for async tests (pytest-asyncio or anyio)
    perdure_sync_env   an open `SyncTestEnv`, for the others

With the marker `perdure_crash_everywhere` each `run` of these is a `crash_everywhere`.

pytest imports this module in every session in which Perdure is installed, so it imports nothing of Perdure before a test asks for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from perdure.testing.env import TestEnv
    from perdure.testing.sync_env import SyncTestEnv

MARKER: Final = "perdure_crash_everywhere"


def _new(request: pytest.FixtureRequest) -> TestEnv:
    from perdure.testing.env import TestEnv

    return TestEnv(crashes_max=_crashes_max(request))


def _crashes_max(request: pytest.FixtureRequest) -> int:
    marker: Any = request.node.get_closest_marker(MARKER)
    if marker is None:
        return 0
    from perdure.testing.crashes import CRASHES_MAX

    return int(marker.kwargs.get("crashes_max", CRASHES_MAX))


async def _of_anyio(request: pytest.FixtureRequest) -> AsyncGenerator[TestEnv]:
    async with _new(request) as env:
        yield env


async def _of_asyncio(request: pytest.FixtureRequest) -> AsyncGenerator[TestEnv]:
    """A function of its own, because pytest-asyncio marks it."""
    async with _new(request) as env:
        yield env


@pytest.fixture
def perdure_sync_env(request: pytest.FixtureRequest) -> Generator[SyncTestEnv]:
    """An open `SyncTestEnv` with a database of its own, for tests that are not async."""
    from perdure.testing.sync_env import SyncTestEnv

    with SyncTestEnv(crashes_max=_crashes_max(request)) as env:
        yield env


@pytest.fixture
def perdure_env(request: pytest.FixtureRequest) -> TestEnv:
    """An open `TestEnv` with a database of its own, for async tests."""
    is_of_anyio = "anyio_backend" in request.fixturenames
    if not is_of_anyio and not request.config.pluginmanager.hasplugin("asyncio"):
        pytest.fail(
            "perdure_env is for async tests and needs pytest-asyncio or anyio; use perdure_sync_env", pytrace=False
        )
    env: TestEnv = request.getfixturevalue("_perdure_env_of_anyio" if is_of_anyio else "_perdure_env_of_asyncio")
    return env


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(crashes_max=100): every `run` of the environment is a `crash_everywhere`"
    )
    found = ModuleType("perdure_async_fixtures")  # pytest looks for fixtures in modules and classes
    found.__dict__["of_anyio"] = pytest.fixture(_of_anyio, name="_perdure_env_of_anyio")
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio

        of_asyncio: Any = pytest_asyncio.fixture(_of_asyncio, loop_scope="function", name="_perdure_env_of_asyncio")
        found.__dict__["of_asyncio"] = of_asyncio
    config.pluginmanager.register(found, found.__name__)
