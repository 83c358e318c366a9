"""The blocking clients in the repository are those that the async ones generate."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.fakes.failures import Failures

ROOT = Path(__file__).parents[2]


def _generator():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("generate_sync", ROOT / "tools" / "generate_sync.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("interpreter")
def test_the_blocking_clients_are_generated_from_the_async_ones() -> None:
    generator = _generator()
    assert set(generator.OUTPUTS) == {"sync_handles.py", "sync_surface.py"}
    with Failures() as failures:
        for output in generator.OUTPUTS:
            with failures.of(output):
                written = (generator.CLIENT / output).read_text()
                assert written == generator.generated(output), "run `just generate-sync`"
