"""`wf.map()`, `task.map()` and `workflow.map()`: one function. As a method its first argument is the task or the workflow itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, overload

from perdure.core.errors import InvalidInput, PerdureError
from perdure.sdk.workflow.live_run import current
from perdure.sdk.workflow.step import Step

A = TypeVar("A")
R = TypeVar("R")


# The first parameter is typed by how it is called: `Task[[A], R]` would match only parameters without a name.
@overload
def map(
    fn: Callable[[A], Step[R]],
    items: Iterable[A],
    /,
    *,
    concurrency: int | None = None,
    on_error: Literal["raise"] = "raise",
) -> Step[list[R]]: ...
@overload
def map(
    fn: Callable[[A], Step[R]], items: Iterable[A], /, *, concurrency: int | None = None, on_error: Literal["collect"]
) -> Step[list[R | Exception]]: ...
def map(fn: Any, items: Iterable[Any], /, *, concurrency: int | None = None, on_error: str = "raise") -> Any:
    """Call a task, or start a child run, once per item. Tasks are scheduled in bulk.

        pages = await wf.map(fetch, urls, concurrency=50)

    Args:
        fn: a task or a workflow that takes one argument.
        items: its arguments.
        concurrency: how many are in flight at a time; all unless given.
        on_error: `"raise"` raises the first error and cancels the rest; `"collect"` puts exceptions in the place of their results.

    Returns a step for the results, in the order of the items. Raises InvalidInput if `fn` is neither a task nor a workflow, and
    PerdureError outside a workflow.
    """
    if not hasattr(fn, "_fan_out"):
        raise InvalidInput(
            "wf.map() takes a @task or a @workflow; for anything else call it yourself and asyncio.gather the steps"
        )
    runtime = current.get(None)
    if runtime is None:
        raise PerdureError(f"map() of {fn.name} works inside a workflow only; outside, make the calls yourself")
    return fn._fan_out(runtime, items, concurrency, on_error)
