"""A large value through jobs and back, as workflows and tests of executors that run commands share it."""

from __future__ import annotations

from typing import Any

from perdure import Perdure, task, wf, workflow
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import references_of
from perdure.executors.port import Executor

LIMIT = "3m"
SIZE = 1_000_000
BY_STDIN = "cat > $PERDURE_RESULT_FILE"
BY_FILE = "cp $PERDURE_INPUT_FILE $PERDURE_RESULT_FILE"


@task(name="payload_works_rows")
async def rows(size: int) -> list[str]:
    return ["é" * 98] * (size // 200)


@workflow(name="payload_works_echo")
async def echoed(task: str, spec: dict[str, Any], stdin: str, size: int) -> list[Any]:
    """The last value, which began as `rows` and passed through two jobs. `stdin` is the key of what is on stdin."""
    given: Any = {"rows": await rows(size)}
    for command, key in ((BY_STDIN, stdin), (BY_FILE, "input")):
        value = await wf.call(task, {**spec, "command": command, key: given})
        given = value["json"] if "exit_code" in value else value
    return [len(given["rows"]), given["rows"][0], given["rows"][-1]]


async def check_large_values(dsn: str, executor: Executor, name: str, *, stdin: str = "input", **spec: Any) -> None:
    """By stdin and by file, there and back, and the history has references only."""
    async with Perdure(dsn, executors=[executor]):
        handle = await echoed.start(name, spec, stdin, SIZE)
        assert await handle.result(timeout=LIMIT) == [SIZE // 200, "é" * 98, "é" * 98]
        payloads = [p for r in await handle.history() for p in payloads_of(r.event)]
        assert max(map(len, payloads)) < 5_000
        assert sum(bool(references_of(p)) for p in payloads) >= 5, "a task's result, and input and result of two jobs"
