"""Which fields of events, commands, messages and requests hold payloads, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import messages as ms
from perdure.core.api import messages as api
from perdure.core.payloads import MARK
from perdure.core.work import StartRequest

T = TypeVar("T")

FIELDS: Final[dict[type, tuple[str, ...]]] = {
    ev.RunStarted: ("input",),
    ev.RunSucceeded: ("result",),
    ev.RunContinued: ("input",),
    ev.NodeOverridden: ("value",),
    ev.TasksScheduled: ("inputs",),
    ev.TasksSucceeded: ("results",),
    ev.ChildStarted: ("input",),
    ev.ChildSucceeded: ("result",),
    ev.SignalReceived: ("value",),
    ev.PromiseResolved: ("value",),
    ev.UpdateReceived: ("value",),
    ev.UpdateAnswered: ("value",),
    ev.OperationRecorded: ("value",),
    ev.StateSet: ("value",),
    cm.ScheduleTasks: ("inputs",),
    cm.StartChild: ("input",),
    cm.RecordOperation: ("value",),
    cm.SetState: ("value",),
    cm.CompleteRun: ("result",),
    cm.ContinueAsNew: ("input", "signals", "promises"),
    cm.AnswerUpdate: ("value",),
    ms.SignalMessage: ("value",),
    ms.PromiseMessage: ("value",),
    ms.ChildEndedMessage: ("value",),
    ms.TaskEndedMessage: ("value",),
    ms.UpdateMessage: ("value",),
    StartRequest: ("input",),
    api.SendSignal: ("value",),
    api.SignalWithStart: ("start", "value"),
    api.ResolvePromise: ("value",),
    api.AskUpdate: ("value",),
}
"""A field holds a payload, a list of them, a list of (name, payload), or a request that has some itself."""


def _fields(record: Any) -> tuple[str, ...]:
    """Those of a deferred start are left out: its input stays inline, because no run holds stored content until it begins."""
    if isinstance(record, StartRequest) and record.is_deferred:
        return ()
    return FIELDS.get(type(record), ())


def payloads_of(record: Any) -> Iterator[bytes]:
    """Every payload of a record that may be stored by reference; none for types without."""
    for field in _fields(record):
        yield from _flat(getattr(record, field))


def _flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield item[1] if isinstance(item, tuple) else item
    else:
        yield from payloads_of(value)


def replaced(record: T, change: Callable[[bytes], bytes]) -> T:
    """The record with every payload changed."""
    fields = {field: _changed(getattr(record, field), change) for field in _fields(record)}
    return msgspec.structs.replace(record, **fields) if fields else record  # type: ignore[type-var]


def _changed(value: Any, change: Callable[[bytes], bytes]) -> Any:
    if isinstance(value, bytes):
        return change(value)
    if isinstance(value, list):
        return [(item[0], change(item[1])) if isinstance(item, tuple) else change(item) for item in value]
    return replaced(value, change)


_FIELD: Final = {kind: attrgetter(fields[0]) for kind, fields in FIELDS.items() if len(fields) == 1}
"""Of the types with one field, which are nearly all."""


def may_be_heavy(records: Iterable[Any], size_max: int) -> bool:
    """Whether a payload of these is larger than `size_max` or an envelope. Asked of every activation and decision: in C as far as possible. JSON text
    is below MARK, whose first byte is no ASCII."""
    for record in records:
        kind = type(record)
        get = _FIELD.get(kind)
        if get is None:
            found = list(payloads_of(record)) if kind in FIELDS else None
        else:
            found = get(record)
            if found.__class__ is not list:
                if len(found) > size_max or found >= MARK:
                    return True
                continue
        if found and (max(map(len, found)) > size_max or max(found) >= MARK):
            return True
    return False
