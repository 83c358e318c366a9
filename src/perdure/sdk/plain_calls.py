"""Calling a task outside a workflow: the plain function runs, and nothing is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from perdure.core.errors import PerdureError
from perdure.sdk.workflow.step import Step, plain_step


def run_plain(fn: Callable[..., Any], is_async: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step[Any]:
    """Call the function now, behind the awaitable that a workflow would get. Raises PerdureError without an event loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise PerdureError(
            f"{fn.__name__}(...) was called with no event loop running; call {fn.__name__}.fn(...) for the plain function"
        ) from None
    if not is_async:
        step = plain_step(loop)
        _settle(step, lambda: fn(*args, **kwargs))
        return step
    inner = loop.create_task(fn(*args, **kwargs))
    step = plain_step(loop, on_cancel=inner.cancel)
    inner.add_done_callback(
        lambda t: None if step.done() else (step.cancel() if t.cancelled() else _settle(step, t.result))
    )
    return step


def _settle(step: Step[Any], produce: Callable[[], Any]) -> None:
    try:
        step.set_result(produce())
    except Exception as e:
        step.set_exception(e)
