"""Workflows that end at once, well or badly."""

from __future__ import annotations

from typing import Any

from perdure import workflow


@workflow
async def after_failure(ended: dict[str, Any]) -> str:
    return str(ended["run_id"])


@workflow(on_failure=after_failure)
async def fails_now(n: int) -> None:
    raise ValueError(f"failed as {n}")


@workflow
async def works_now(n: int) -> int:
    if n % 10 == 0:
        raise ValueError(f"failed as {n}")
    return n
