"""Named events that start runs: which ones, with which input, under which key. The pure part.

A version of a workflow has subscriptions; those of its current version count. Whether an event starts a run follows from the subscriptions and
the payload alone, so any engine decides it in the same way.

Laws:

1. An event starts one run of a workflow at most. Of several subscriptions to it the first that matches counts.
2. An expression that cannot be evaluated over a payload starts nothing: it raises InvalidInput, which says which one it was.
3. A key decides alone which run it is, and so does a dedup: a subscription has one of them at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from perdure.core.calls import encode_json, encode_offer
from perdure.core.deferred_starts import DedupSpec, check_later
from perdure.core.errors import ExprError, InvalidInput
from perdure.core.expressions import Expr, parse
from perdure.core.expressions.nodes import Meter
from perdure.core.expressions.template import Template
from perdure.core.limits import EVENT_MATCH_STEPS_MAX, PAYLOAD_BYTES_MAX
from perdure.core.named_events import EVENT, check_name
from perdure.core.names import checked_name
from perdure.core.subscriptions import Subscription

_PARSED: Final = 1_024
"""Expressions that are kept in their compiled form."""


class PlannedStart(msgspec.Struct, frozen=True):
    """A run that an event starts."""

    input: bytes
    key: str = ""
    dedup: DedupSpec | None = None


def check(s: Subscription) -> None:
    """InvalidInput for a subscription that can never start a run."""
    check_name(s.event)
    for what, text in (("match", s.match), ("key", s.key), ("dedup", s.dedup)):
        if text:
            _check_roots(what, _read(what, text).roots)
    if s.input is not None:
        try:
            roots = Template.make(s.input).roots
        except ExprError as e:
            raise InvalidInput(f"input: {e}") from None
        _check_roots("input", roots)
    if s.within_us and not s.dedup:
        raise InvalidInput("within belongs to dedup: say by what events are duplicates of one another")
    check_later(None, DedupSpec("any", s.within_us) if s.dedup else None, "any" if s.key else "")


def _read(what: str, text: str) -> Expr:
    try:
        return _parse(text)
    except ExprError as e:
        raise InvalidInput(f"{what}: {e}") from None


def _check_roots(what: str, roots: frozenset[str]) -> None:
    for root in sorted(roots - {EVENT}):
        raise InvalidInput(f"{what}: unknown name {root!r}; only {EVENT} is known here, the payload of the event")


def planned(subscriptions: Sequence[Subscription], event: str, payload: Any) -> PlannedStart | None:
    """The run that an event of this name and payload starts; None: no subscription matches it."""
    scope = {EVENT: payload}
    for s in subscriptions:
        if s.event == event and (not s.match or _value("match", s.match, scope) is True):
            return PlannedStart(_input(s, payload, scope), _key("key", s.key, scope), _dedup(s, scope))
    return None


def _value(what: str, text: str, scope: Mapping[str, Any]) -> Any:
    try:
        return _read(what, text).evaluate(scope.__getitem__, _meter())
    except ExprError as e:
        raise InvalidInput(f"{what} of this event cannot be evaluated: {e}") from None


def _meter() -> Meter:
    meter = Meter()
    meter.steps = EVENT_MATCH_STEPS_MAX
    return meter


def _key(what: str, text: str, scope: Mapping[str, Any]) -> str:
    if not text:
        return ""
    found = _value(what, text, scope)
    if isinstance(found, bool) or not isinstance(found, (str, int)) or found == "":
        raise InvalidInput(f"{what}: {text} gives {_shown(found)} for this event; it must be text or a whole number")
    return checked_name(what, str(found))


def _shown(value: Any) -> str:
    return "nothing" if value is None or value == "" else f"a {type(value).__name__}"


def _dedup(s: Subscription, scope: Mapping[str, Any]) -> DedupSpec | None:
    return DedupSpec(_key("dedup", s.dedup, scope), s.within_us) if s.dedup else None


def _input(s: Subscription, payload: Any, scope: Mapping[str, Any]) -> bytes:
    if s.input is not None:
        try:
            data = encode_json(Template.make(s.input).evaluate(scope.__getitem__, _meter()))
        except ExprError as e:
            raise InvalidInput(f"input for this event cannot be evaluated: {e}") from None
    elif s.argument:
        data = encode_json({s.argument: payload})
    elif payload is None:
        data = b"{}"
    elif isinstance(payload, dict):
        data = encode_offer(cast(dict[str, Any], payload))
    else:
        raise InvalidInput(
            f"the payload is {_kind(payload)} and no object, so it is no input: give `input` a field for it"
        )
    if len(data) > PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"the input has {len(data)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}")
    return data


def _kind(payload: Any) -> str:
    return "a list" if isinstance(payload, list) else "a single value"


@lru_cache(_PARSED)
def _parse(text: str) -> Expr:
    return parse(text)
