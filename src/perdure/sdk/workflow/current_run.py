"""A run as its own code may ask about it: workflow code, and the queries of its workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

from perdure.core import ids


class CurrentRun:
    """The run that this code belongs to. `wf.info()` returns it."""

    def __init__(self, run_id: bytes, workflow: Any, key: str, status: str, input: Callable[[], bytes]) -> None:
        self.id = ids.text(run_id)
        self.workflow: str = workflow.name
        """The name of its workflow."""
        self.key = key
        """The key that it was started under; empty: none."""
        self.status = status
        """`running` in workflow code; in a query also `pending`, `success`, `failed` or `cancelled`."""
        self._definition, self._input = workflow, input

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the run by the names of its parameters, defaults included."""
        args, kwargs = self._definition.signature.decode_call(self._input())
        bound = inspect.signature(self._definition.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)
