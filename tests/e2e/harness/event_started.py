"""Workflows that events start: each event a run, one run for each key while it is active, one run for each group."""

from __future__ import annotations

from typing import Any

from perdure import Dedup, NamedEvent, On, workflow

told = NamedEvent("kills.told", dict[str, Any])
over = NamedEvent("kills.over", bool)


@workflow(on=On(told))
async def each_event(event: dict[str, Any]) -> int:
    return int(event["n"])


@workflow(on=On(told, match="event.n % 3 == 0"))
async def each_third(event: dict[str, Any]) -> int:
    return int(event["n"])


@workflow(on=On(told, key="event.order"))
async def each_order(event: dict[str, Any]) -> int:
    """Active until the test is over, so every event of an order belongs to it."""
    await over.wait()
    return int(event["n"])


@workflow(on=On(told, dedup=Dedup("event.group", within="1h")))
async def each_group(event: dict[str, Any]) -> int:
    return int(event["n"])
