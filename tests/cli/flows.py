"""What the worker of the command line's tests serves."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from perdure import Promise, Signal, State, task, wf, workflow

go = Signal("go", str)
approval = Promise("approval", bool)
progress = State("progress", 0)
REPAIRED = Path(os.environ.get("CLI_TESTS_REPAIRED", "/nonexistent"))
"""Made by tests to repair a task; the worker is a process of its own."""


@task
async def cli_hello(name: str) -> str:
    print(f"saying hello to {name}")
    logging.getLogger("flows").warning("%s was greeted", name)
    return f"Hello, {name}!"


@task(retry=1)
async def cli_explode(reason: str) -> str:
    raise ValueError(f"it broke: {reason}")


@task(retry=1)
async def cli_repairable() -> str:
    if not REPAIRED.exists():
        raise RuntimeError("not repaired yet")
    return "repaired"


@workflow
async def cli_greet(name: str, times: int = 1) -> list[str]:
    return [await cli_hello(name) for _ in range(times)]


@workflow
async def cli_fan(count: int) -> int:
    return len(await wf.map(cli_hello, [f"n{i}" for i in range(count)]))


@workflow
async def cli_failing(reason: str = "on purpose") -> str:
    return await cli_explode(reason)


@workflow
async def cli_repair() -> str:
    return await cli_repairable()


@workflow
async def cli_waiting() -> str:
    progress.set(50)
    said = await go.next()
    agreed = await approval.wait()
    return f"{said} {agreed}"


@workflow
async def cli_forever() -> None:
    await go.next()


@workflow
async def cli_echo(value: dict[str, object] | list[object] | str | int | float | bool | None) -> object:
    return value
