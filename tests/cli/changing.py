"""A workflow whose code depends on where it runs, which it must not: for a run that gets stuck, and for one whose code is gone."""

from __future__ import annotations

import os

from perdure import task, wf, workflow


@task
async def one() -> None: ...


@task
async def other() -> None: ...


@workflow(version="1")
async def changing() -> None:
    await (one if os.environ.get("CLI_TESTS_SHAPE", "one") == "one" else other)()
    await wf.sleep("2s")
    await wf.sleep("1d")
