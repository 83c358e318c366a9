"""`flow("nightly-etl")`: a workflow that this program knows by its name alone, such as one that was deployed as a document.

Its input is an object and given by keywords. Which version runs is settled when it starts: the one that is current then.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final, TypeVar, overload

from perdure.core.errors import PayloadMismatch
from perdure.sdk.payloads import Converter
from perdure.sdk.startable import Startable

T = TypeVar("T")

CURRENT: Final = ""
"""In place of a version: the current one."""


class FlowRef(Startable[..., T]):
    """A workflow by name. `start` returns a handle, `run` the result; called inside a workflow it is a child run."""

    def __init__(self, name: str, result: Any) -> None:
        super().__init__(name, CURRENT)
        self._type = result

    def __repr__(self) -> str:
        return f"<flow {self.name}>"

    @property
    def _source_text(self) -> str:
        return f"flow({self.name!r})"

    @cached_property
    def signature(self) -> _FlowCallCodec:
        return _FlowCallCodec(self._source_text, self._type)


class _FlowCallCodec:
    """Arguments and results as JSON. The parameters are not known here, so any JSON is accepted."""

    def __init__(self, source: str, result: Any) -> None:
        self._input, self._output = f"the input of {source}", f"the result of {source}"
        self._returned: Converter[Any] = Converter.of(result)

    def encode_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if args:
            raise PayloadMismatch(f"{self._input} is given by keywords, such as day='monday'; {args[0]!r} has no name")
        return _OBJECT.encode(kwargs, self._input)

    def encode_calls(self, items: Iterable[Any]) -> list[bytes]:
        return [_OBJECT.encode(item, f"{self._input} (item {i})") for i, item in enumerate(items)]

    def decode_result(self, data: bytes) -> Any:
        return self._returned.decode(data, self._output)


_OBJECT: Final[Converter[Any]] = Converter.of(dict[str, Any])


@overload
def flow(name: str) -> FlowRef[Any]: ...
@overload
def flow(name: str, result: type[T]) -> FlowRef[T]: ...
def flow(name: str, result: Any = Any) -> FlowRef[Any]:
    """A workflow that this program knows by its name alone, such as a deployed flow.

        report = await flow("nightly-etl", Report).run(day="monday")

    Args:
        name: the name of the workflow.
        result: the type of its result; any JSON unless given.

    Its input is given by keywords. Calls raise NotRegistered if no workflow of that name is known.
    """
    return FlowRef(name, result)
