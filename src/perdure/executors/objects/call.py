"""Calls the Python function of a spec: `python -m perdure.executors.objects.call module:function`.

The function takes the input by the names of its parameters, or as its only argument where the input is no mapping. A parameter `ctx` gets
a Context.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Who is running."""

    task_id: str
    run_id: str
    task_name: str
    workflow_name: str
    attempt: int
    parallel_index: int | None
    parallel_count: int | None


def main() -> None:
    result, error = Path(os.environ["PERDURE_RESULT_FILE"]), Path(os.environ["PERDURE_ERROR_FILE"])
    data = msgspec.json.decode(Path(os.environ["PERDURE_INPUT_FILE"]).read_bytes())
    try:
        value = call(sys.argv[1], data, context(os.environ))
        result.write_bytes(msgspec.json.encode(value))
    except BaseException as e:
        error.write_bytes(msgspec.json.encode({"error": str(e), "type": type(e).__name__}))
        traceback.print_exc()
        sys.exit(1)


def call(name: str, data: Any, ctx: Context) -> Any:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), function)
    plain = getattr(found, "fn", found)  # of a Perdure task: the function itself
    args, kwargs = ((), dict(data)) if isinstance(data, dict) else (() if data is None else (data,), {})
    if "ctx" in inspect.signature(plain).parameters:
        kwargs["ctx"] = ctx
    value = plain(*args, **kwargs)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Any) -> Any:
    return await value


def context(env: os._Environ[str] | dict[str, str]) -> Context:
    index, count = env.get("PERDURE_PARALLEL_INDEX"), env.get("PERDURE_PARALLEL_COUNT")
    return Context(
        task_id=env["PERDURE_TASK_ID"],
        run_id=env["PERDURE_RUN_ID"],
        task_name=env["PERDURE_TASK_NAME"],
        workflow_name=env["PERDURE_WORKFLOW_NAME"],
        attempt=int(env["PERDURE_ATTEMPT"]),
        parallel_index=int(index) if index else None,
        parallel_count=int(count) if count else None,
    )


if __name__ == "__main__":
    main()
