"""Runs that wait until they are cancelled."""

from __future__ import annotations

from perdure import Promise, workflow

go = Promise("go", bool)


@workflow(name="bulk_kills_held")
async def held(n: int) -> bool:
    return await go.wait()
