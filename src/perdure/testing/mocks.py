"""What `TestEnv.mock` puts in the place of a workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from perdure.core import events as ev
from perdure.sdk.payloads import Converter
from perdure.sdk.workflow import guards

_ANY: Final[Converter[Any]] = Converter.of(Any)


class ByName:
    """Calls and results of a workflow of which only the name is known: an object of arguments, and any JSON."""

    def decode_call(self, data: bytes) -> tuple[tuple[()], dict[str, Any]]:
        return (), _ANY.decode(data) or {}

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return _ANY.encode(kwargs)

    def encode_result(self, value: Any) -> bytes:
        return _ANY.encode(value)


class StandIn:
    """A workflow whose code is a mock."""

    def __init__(self, name: str, version: str, signature: Any, fn: Callable[..., Any]) -> None:
        self.name, self.version, self.signature, self.fn = name, version, signature, fn

    async def body(self, started: ev.RunStarted) -> Any:
        args, kwargs = self.signature.decode_call(started.input)
        if inspect.iscoroutinefunction(self.fn):
            return await self.fn(*args, **kwargs)
        # A plain function is not workflow code: it may count its calls, read a file, look at the clock.
        with guards.lifted():
            value = self.fn(*args, **kwargs)
        return await value if inspect.isawaitable(value) else value
