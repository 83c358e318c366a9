"""`on:` of a flow: named events that start its runs.

    on:
      - event: order.paid
        match: event.total > 10
        key: event.order_id
        input: {order: "${ event.order_id }"}

One event needs no list: `on: {event: order.paid}`. Expressions read `event`, the payload, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.core.errors import InvalidInput
from perdure.core.event_starts import check
from perdure.core.limits import SUBSCRIPTIONS_MAX
from perdure.core.named_events import EVENT, check_name
from perdure.core.subscriptions import Subscription
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.problems import Path

ON_KEYS: Final = ("event", "match", "key", "dedup", "input")
DEDUP_KEYS: Final = ("key", "within")
_SCOPE: Final = Scope(frozenset({EVENT}), {})


def read_subscriptions(r: Reader, value: Any) -> tuple[Subscription, ...]:
    path: Path = ("on",)
    if value is None:
        return ()
    items = r.list_of(value, path, "on") if not isinstance(value, dict) else None
    if len(items or ()) > SUBSCRIPTIONS_MAX:
        r.error(path, f"there are more than SUBSCRIPTIONS_MAX={SUBSCRIPTIONS_MAX} events", key=True)
        return ()
    places: list[tuple[Any, Path]] = (
        [(value, path)]
        if items is None and isinstance(value, dict)
        else [(x, (*path, i)) for i, x in enumerate(items or ())]
    )
    found = [_subscription(r, item, at) for item, at in places]
    return tuple(s for s in found if s is not None)


def _subscription(r: Reader, item: Any, at: Path) -> Subscription | None:
    fields = r.mapping(item, at, "an event of on")
    if fields is None:
        return None
    before = len(r.problems)
    r.keys(fields, at, "an event of on", ON_KEYS)
    if fields.get("event") is None:
        r.error(at, "an event of on has no name", "add event: with the name of the event")
        return None
    name = r.text(fields["event"], (*at, "event"), "event") or ""
    dedup, within_us = _dedup(r, fields.get("dedup"), (*at, "dedup"))
    given = fields.get("input")
    if given is not None and r.mapping(given, (*at, "input"), "input") is not None:
        r.template(given, (*at, "input"), _SCOPE)
    made = Subscription(
        event=name,
        match=_expression(r, fields, at, "match"),
        key=_expression(r, fields, at, "key"),
        dedup=dedup,
        within_us=within_us,
        input=given,
    )
    if len(r.problems) > before:
        return None
    try:
        check_name(name)
        check(made)
    except InvalidInput as e:
        r.error(at, str(e))
        return None
    return made


def _expression(r: Reader, fields: Mapping[str, Any], at: Path, what: str) -> str:
    if fields.get(what) is None:
        return ""
    found = r.expression(fields[what], (*at, what), what, _SCOPE)
    return found.text if found is not None else ""


def _dedup(r: Reader, value: Any, at: Path) -> tuple[str, int]:
    """An expression alone, or `{key: EXPR, within: 10m}`."""
    if value is None:
        return "", 0
    if not isinstance(value, dict):
        found = r.expression(value, at, "dedup", _SCOPE)
        return (found.text if found is not None else ""), 0
    r.keys(value, at, "dedup", DEDUP_KEYS)
    key = _expression(r, value, at, "key")
    if value.get("key") is None:
        r.error(at, "dedup has no key", "add key: with an expression, such as event.id")
    within_us = 0
    if value.get("within") is not None:
        within_us = r.duration(value["within"], (*at, "within"), "within") or 0
    return key, within_us
