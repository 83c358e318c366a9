"""A deferred start becomes a run in its time."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.deferred_starts import DebounceSpec
from perdure.core.work import StartRequest
from perdure.engine.services.deferred_starts import DeferredStart, DeferredStarts
from perdure.engine.services.new_runs import NewRuns
from tests.fakes.engine_parts import EngineParts


@pytest.mark.parametrize(("known_us", "looks"), [(None, True), (900, True), (50, False)])
async def test_a_start_that_is_put_off_is_looked_at_in_time(known_us: int | None, looks: bool) -> None:
    """Also when a later one is known: waiting for that would make this one late."""

    made = EngineParts()

    class Store:
        async def defer(self, asked: Any) -> DeferredStart:
            return DeferredStart(asked.run_id, 100)

    starts = DeferredStarts(made.context, Store(), NewRuns(made.context, made.flow_control, made.parts.versions))  # type: ignore[arg-type]
    starts._next_us = known_us
    await starts._defer(
        1, StartRequest(workflow="w", version="v", input=b"{}", later=DebounceSpec(key="k", quiet_us=100))
    )
    assert starts.is_woken is looks
