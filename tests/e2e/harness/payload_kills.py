"""Tasks and workflows with large payloads, served by worker processes that are killed."""

from __future__ import annotations

import perdure
from perdure import task, workflow

LARGE = 300_000
"""Characters: more than a payload may have inline."""


@task(name="kills.same")
async def same() -> str:
    return "s" * LARGE


@task(name="kills.differs")
async def differs() -> str:
    """Each attempt has a result of its own, so that the one of a killed worker is used by no run."""
    return str(perdure.attempt().number) * LARGE


@workflow(name="kills.results")
async def results() -> list[str]:
    first, second = await same(), await differs()
    return [f"{text[0]} {len(text)}" for text in (first, second)]


@workflow(name="kills.measured")
async def measured(text: str) -> int:
    return len(text)
