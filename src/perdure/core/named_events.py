"""Named events: what a run waits for, and whether an event is that.

A wait is a promise whose spec names the event and holds an expression over `event`, the event's payload, and over values that were bound when
the wait began. So whether an event fits is decided from the spec and the payload alone, by any engine, without the run.

A wait looks back: it also gets an event that came before it, as far back as its spec says (`since_us`). The key of a spec is a digest of its
question, that is of event, match and bound values. Two waits of one run with the same key ask the same, whenever they were made.

Laws:
- An expression that cannot be evaluated over a payload does not fit it. Other waits are not affected.
- A spec holds only what its expression reads, and is bounded.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from perdure.core.durations import Duration, to_us, us_of
from perdure.core.errors import InvalidInput
from perdure.core.expressions import Expr, ExprError, parse
from perdure.core.expressions.nodes import Meter
from perdure.core.limits import EVENT_MATCH_STEPS_MAX, EVENT_SPEC_BYTES_MAX, NAME_CHARS_MAX
from perdure.core.names import checked_name

EVENT: Final = "event"
"""What an expression calls the payload."""
EVENT_NAME_CHARS_MAX: Final = NAME_CHARS_MAX - 40
"""Characters of an event's name; the names of the promises that wait for it are longer."""
NOW: Final = "now"
"""The `since` of a wait that doesn't look back."""
_KEY_BYTES: Final = 12
_PARSED: Final = 1_024
"""Expressions that are kept in their compiled form."""


class EventWait(msgspec.Struct, frozen=True, omit_defaults=True):
    event: str
    match: str = ""
    """Empty: every event of the name will do."""
    bound: dict[str, Any] = {}
    """What the expression reads besides the payload."""
    since_us: int = 0
    """The wait gets events from this moment on, in Unix microseconds. 0: only events after the wait."""
    key: str = ""
    """Digest of event, match and bound."""


Since = Duration | float | datetime | None


def check_name(name: str) -> str:
    return checked_name("event", name, EVENT_NAME_CHARS_MAX)


def since_us(since: Since, *, started_us: int, now_us: int) -> int:
    """The moment from which on a wait gets events. `since` is a moment, a duration before now, "now" for 0, or None for the start of the run.
    Numbers are seconds."""
    if since is None:
        return started_us
    if isinstance(since, datetime):
        return max(us_of(since), 1)
    if isinstance(since, (int, float, timedelta)):
        return max(now_us - to_us(since), 1)
    if since == NOW:
        return 0
    moment = _moment(since)
    return max(us_of(moment) if moment is not None else now_us - _ago_us(since), 1)


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _ago_us(text: str) -> int:
    try:
        return to_us(text)
    except InvalidInput:
        raise InvalidInput(
            f'invalid since: {text!r}. Use a duration such as "10m", a time such as "2027-01-31T12:00:00Z", or "now".'
        ) from None


def wait_spec(event: str, match: str, values: Mapping[str, Any], since_us: int = 0) -> bytes:
    """The spec of a wait. `values` are what the expression may read besides `event`, as plain JSON values; it keeps what it does read."""
    check_name(event)
    expr = parsed(match, event) if match else None
    bound = bind(expr, values, event) if expr is not None else {}
    text = expr.text if expr is not None else ""
    question = msgspec.json.encode((event, text, bound), order="deterministic")
    key = hashlib.blake2b(question, digest_size=_KEY_BYTES).hexdigest()
    spec = msgspec.json.encode(EventWait(event, text, bound, since_us, key))
    if len(spec) > EVENT_SPEC_BYTES_MAX:
        raise InvalidInput(
            f"the wait for event {event!r} has {len(spec)} bytes, over the limit EVENT_SPEC_BYTES_MAX={EVENT_SPEC_BYTES_MAX}; "
            "bind ids instead of whole objects"
        )
    return spec


def parsed(match: str, event: str) -> Expr:
    try:
        return _parse(match)
    except ExprError as e:
        raise InvalidInput(f"match of the wait for event {event!r}: {e}") from None


def bind(expr: Expr, values: Mapping[str, Any], event: str) -> dict[str, Any]:
    """Of each value the parts that the expression reads."""
    bound: dict[str, Any] = {}
    for root in sorted(expr.roots - {EVENT}):
        if root not in values:
            raise InvalidInput(_unknown(root, sorted(values), event))
        bound[root] = _read(values[root], [p[1:] for p in expr.paths if p[0] == root])
    return bound


def _unknown(root: str, known: Sequence[str], event: str) -> str:
    near = difflib.get_close_matches(root, [EVENT, *known], 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it can read {', '.join([EVENT, *known])}"
    return f"match of the wait for event {event!r} reads {root!r}, which is not there: {hint}"


def _read(value: Any, paths: Iterable[Sequence[str | int]]) -> Any:
    below: dict[str | int, list[Sequence[str | int]]] = {}
    for path in paths:
        if not path:
            return value
        below.setdefault(path[0], []).append(path[1:])
    if not isinstance(value, dict):
        return value
    return {k: _read(value[k], rest) for k, rest in below.items() if k in value}


def read_spec(spec: str | bytes) -> EventWait:
    return msgspec.json.decode(spec, type=EventWait)


def fits(spec: str | bytes, payload: Any) -> bool | None:
    """Whether an event of the right name matches a wait; None when its expression cannot be evaluated, which counts as no."""
    try:
        wait = read_spec(spec)
        if not wait.match:
            return True
        meter = Meter()
        meter.steps = EVENT_MATCH_STEPS_MAX
        return _parse(wait.match).evaluate({**wait.bound, EVENT: payload}.__getitem__, meter) is True
    except (ExprError, msgspec.DecodeError):
        return None


@lru_cache(_PARSED)
def _parse(text: str) -> Expr:
    return parse(text)
