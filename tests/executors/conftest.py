from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.executors import crashes


@pytest.fixture(scope="session")
def forks(interpreter: None) -> Iterator[None]:
    """The process that `crashes.crash` forks crashing workers from."""
    crashes.start_forks()
    yield
    crashes.end_forks()
