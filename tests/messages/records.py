"""Histories and tables as the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.messages import PromiseMessage, SignalMessage, UpdateMessage
from perdure.wire.codec import decode_message
from tests.messages.model import Answer, Order, Past, Set
from tests.messages.programs import DAG_ORDERS

KEPT: Final = ("signal", "promise", "answer", "update")
"""What senders were told is safe. The other rows of the inbox are requests, and reports of tasks and children."""


def past(run: str, style: str, history: Sequence[ev.Recorded], base: int) -> Past:
    first = history[0].event
    assert isinstance(first, ev.RunStarted)
    carried: list[Any] = msgspec.json.decode(first.input)["log"] if style == "code" else []
    p = Past(run, carried)
    if style == "dag":
        p.orders = [Order(act, base + i) for i, act in enumerate(DAG_ORDERS, 1)]
    steps: dict[int, int] = {}
    for r in history:
        _add(p, r.event, steps, style)
    return p


def steps(history: Sequence[ev.Recorded]) -> dict[int, int]:
    """The number that the engine gave to each step."""
    found: dict[int, int] = {}
    for r in history:
        if isinstance(r.event, ev.TasksScheduled):
            found |= {_number(msgspec.json.decode(data)): r.event.first + i for i, data in enumerate(r.event.inputs)}
    return found


def _add(p: Past, event: ev.Event, steps: dict[int, int], style: str) -> None:
    match event:
        case ev.SignalReceived(name="do"):
            p.orders.append(Order(**msgspec.json.decode(event.value)))
        case ev.SignalReceived(name="fin"):
            p.orders.append(Order("end", msgspec.json.decode(event.value)))
        case ev.SignalReceived():
            p.words.append(msgspec.json.decode(event.value))
        case ev.PromiseResolved():
            _resolved(p, event.name, msgspec.json.decode(event.value))
        case ev.UpdateReceived():
            p.updates.append(msgspec.json.decode(event.value))
        case ev.TasksScheduled():
            for i, data in enumerate(event.inputs):
                steps[event.first + i] = _number(msgspec.json.decode(data))
        case ev.TasksSucceeded():
            for seq, data in zip(event.seqs, event.results, strict=True):
                p.results[steps[seq]] = msgspec.json.decode(data)
                p.failed.discard(steps[seq])
        case ev.TaskFailed():
            p.failed.add(steps[event.seq])
        case ev.RunRetried():
            p.retries += 1
            p.end = ""
            p.failed.clear()
        case ev.EndWithdrawn():
            p.withdrawn += 1
        case ev.RunSucceeded():
            p.end, p.result = "success", _account(msgspec.json.decode(event.result), style)
        case ev.RunFailed():
            p.end = "failed"
        case ev.RunCancelled() | ev.RunTerminated():
            p.end = "cancelled"
        case ev.RunContinued():
            p.end, p.next_run = "continued", ids.text(event.run_id)
        case _:
            pass


def _number(given: Any) -> int:
    while not isinstance(given, int):
        given = next(iter(given.values())) if isinstance(given, dict) else given[0]
    return given


def _resolved(p: Past, name: str, value: Any) -> None:
    if name.startswith("event:"):
        p.events.append(value["n"])
    elif name[0] == "p":
        p.values.setdefault(int(name[1:]), value)
    else:
        p.answers.append(answer(name, value))


def answer(name: str, envelope: Any) -> Answer:
    value = envelope["value"]
    votes = tuple(int(v["comment"]) for v in envelope["votes"])
    return Answer(name, envelope["approved"], votes, value["v"] if isinstance(value, dict) else value)


def _account(result: Any, style: str) -> list[Any]:
    if style == "code":
        return result
    log = result["log"]
    return [_decided(e) if isinstance(e[0], bool) else e for e in log]


def _decided(e: list[Any]) -> list[Any]:
    return ["yes", e[1], e[2]["v"]] if e[0] else ["no", e[1]]


def left(run: bytes, kind: str, body: bytes, reason: str) -> Set | None:
    """A row of the inbox or of the messages that were set aside."""
    if kind not in KEPT:
        return None
    message = decode_message(body)
    name = ids.text(run)
    match message:
        case SignalMessage(name="word"):
            return Set(name, "word", msgspec.json.decode(message.value), reason)
        case SignalMessage(name="do"):
            return Set(name, "order", msgspec.json.decode(message.value)["n"], reason)
        case SignalMessage():
            return Set(name, "order", msgspec.json.decode(message.value), reason)
        case UpdateMessage():
            return Set(name, "update", msgspec.json.decode(message.value), reason)
        case PromiseMessage():
            value = msgspec.json.decode(message.value)
            if message.name.startswith("event:"):
                return Set(name, "event", value["n"], reason)
            if message.name[0] == "p":
                return Set(name, "value", (int(message.name[1:]), value), reason)
            return Set(name, "answer", answer(message.name, value).votes, reason)
        case _:
            raise TypeError(type(message).__name__)
