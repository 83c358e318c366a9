"""Named events that start runs of a workflow: `@workflow(on=On("order.paid"))`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from perdure.core import event_starts
from perdure.core.errors import InvalidInput
from perdure.core.subscriptions import Subscription, encode
from perdure.sdk.flow_control import Dedup


class EventName(Protocol):
    """A `NamedEvent`."""

    name: str


class On:
    """A named event that starts runs of a workflow, each event one run at most.

        @workflow(on=On("order.paid", match="event.total > 10", key="event.order_id"))
        async def ship(order: Order) -> None: ...

    Without `input` a workflow with one parameter gets the payload as its argument; one with several gets the fields of the payload that
    they name.

    Args:
        event: the name of the event, or a `NamedEvent`.
        match: an expression over `event`, the payload; only events for which it is true start a run.
        key: an expression for the run's key. If a run is active under it, the event starts no other.
        dedup: an expression, or `Dedup("event.id", within="1h")`: events with the same value start one run.
        input: arguments by name; texts may hold expressions, such as `"${ event.id }"`.

    Raises InvalidInput for what can never work.
    """

    __slots__ = ("recorded",)

    def __init__(
        self,
        event: str | EventName,
        *,
        match: str = "",
        key: str = "",
        dedup: str | Dedup = "",
        input: Mapping[str, Any] | None = None,
    ) -> None:
        spec = dedup.recorded if isinstance(dedup, Dedup) else None
        self.recorded = Subscription(
            event=event if isinstance(event, str) else event.name,
            match=match,
            key=key,
            dedup=spec.key if spec is not None else str(dedup),
            within_us=spec.within_us if spec is not None else 0,
            input=dict(input) if input is not None else None,
        )
        try:
            event_starts.check(self.recorded)
        except InvalidInput as e:
            raise InvalidInput(f"On({self.recorded.event!r}): {e}") from None


def subscriptions_of(on: On | Sequence[On], fn: Callable[..., Any]) -> bytes:
    """What a workflow declares, as JSON. A single parameter takes the whole payload."""
    argument = _only_parameter(fn)
    given = [one.recorded for one in ((on,) if isinstance(on, On) else on)]
    return encode([msgspec.structs.replace(s, argument=argument) if s.input is None else s for s in given])


def _only_parameter(fn: Callable[..., Any]) -> str:
    """The name of the one parameter of a function; empty where it has none or several."""
    parameters = list(inspect.signature(fn).parameters.values())
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameters[0].name if len(parameters) == 1 and parameters[0].kind not in several else ""
