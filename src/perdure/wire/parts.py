"""Activations and decisions in parts of about PART_BYTES, each of which fits into one message of the worker protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeVar

from perdure.core.commands import COMMAND_TYPES, Command, ContinueAsNew
from perdure.core.events import EVENT_TYPES, Recorded
from perdure.core.work import Activation, Decided
from perdure.wire.protocol import PART_BYTES

WHOLE_RECORDS: Final = 4
"""An activation or decision of so few records is never cut: a record is bounded by what one commit may hold."""

T = TypeVar("T")


def activation_parts(number: int, a: Activation) -> Iterator[tuple[int, Activation, bool]]:
    """An activation in parts of bounded size; nearly always one."""
    if len(a.events) <= WHOLE_RECORDS:
        yield number, a, False
        return
    parts = list(_cut(a.events, _event_size))
    for i, events in enumerate(parts):
        yield number, Activation(a.run_id, a.workflow, events, a.replay, a.ns), i < len(parts) - 1


def decision_parts(number: int, d: Decided) -> Iterator[tuple[int, Decided, bool]]:
    if len(d.commands) <= WHOLE_RECORDS:
        yield number, d, False
        return
    parts = list(_cut(d.commands, _command_size))
    for i, commands in enumerate(parts):
        part = Decided(d.run_id, commands, d.stuck, d.operations, d.spontaneous, d.waiting, d.full)
        yield number, part, i < len(parts) - 1


def activation_size(a: Activation) -> int:
    return 64 + sum(map(_event_size, a.events))


def decision_size(d: Decided) -> int:
    return 64 + sum(map(_command_size, d.commands))


def _event_size(r: Recorded) -> int:
    return _SIZES[type(r.event)](r.event)


def _command_size(c: Command) -> int:
    return _SIZES[type(c)](c)


def _sizer(kind: type[Any]) -> Callable[[Any], int]:
    """About how many bytes a record takes: its payloads, and something for the rest."""
    fields = kind.__struct_fields__
    for many in ("inputs", "results"):
        if many in fields:
            values = attrgetter(many)
            return lambda record: 64 + sum(map(len, values(record)))
    for single in ("input", "result", "value"):
        if single in fields:
            value = attrgetter(single)
            return lambda record: 64 + len(value(record))
    return lambda record: 64


def _continued_size(c: ContinueAsNew) -> int:
    return (
        64
        + len(c.input)
        + sum(len(v) + 32 for _, v in (*c.signals, *c.promises))
        + sum(len(reason) + 2 for reason, _ in c.cancels)
    )


_SIZES: Final[dict[type, Callable[[Any], int]]] = {
    **{kind: _sizer(kind) for kind in (*EVENT_TYPES, *COMMAND_TYPES)},
    ContinueAsNew: _continued_size,
}


def _cut(items: list[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """At least one part, even of nothing."""
    part: list[T] = []
    size = 0
    for item in items:
        n = size_of(item)
        if part and size + n > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(item)
        size += n
    yield part
