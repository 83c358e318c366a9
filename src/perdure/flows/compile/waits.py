"""The verb `wait`: for a signal or for a named event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.core.errors import InvalidInput
from perdure.core.expressions.template import Template
from perdure.core.named_events import since_us
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.model import MessageVerb
from perdure.flows.problems import Path

WAIT_KEYS: Final = ("signal", "event", "match", "since", "timeout")


def read_wait(r: Reader, value: Any, path: Path, where: str, scope: Scope) -> MessageVerb | None:
    at = path
    if isinstance(value, dict):
        fields: dict[str, Any] = value
        r.keys(fields, path, f"wait of {where}", WAIT_KEYS)
        if fields.get("event") is not None:
            return _read_event(r, fields, path, where, scope)
        for key in ("match", "since"):
            if fields.get(key) is not None:
                r.error((*path, key), f"{key} of {where} goes with event", "a signal is for one run", key=True)
        value, at = fields.get("signal"), (*path, "signal")
    made = message_name(r, value, at, "the signal's name", scope)
    return None if made is None else MessageVerb(signal=made)


def _read_event(r: Reader, fields: Mapping[str, Any], path: Path, where: str, scope: Scope) -> MessageVerb | None:
    if fields.get("signal") is not None:
        r.error((*path, "signal"), f"{where} waits for a signal and for an event; a node does one thing", key=True)
    name = message_name(r, fields["event"], (*path, "event"), "the event's name", scope)
    match = since = None
    if fields.get("match") is not None:
        match = r.expression(fields["match"], (*path, "match"), "match", scope.plus("event"))
        if match is None:
            return None
    if fields.get("since") is not None:
        since = _read_since(r, fields["since"], (*path, "since"), scope)
        if since is None:
            return None
    return None if name is None else MessageVerb(signal=name, event=True, match=match, since=since)


def _read_since(r: Reader, value: Any, path: Path, scope: Scope) -> Template | None:
    """How far a wait looks back. The value of an expression is checked when the wait begins."""
    if isinstance(value, str) and "${" in value:
        return r.template(value, path, scope)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        r.wanted(path, "since", 'a duration such as "10m", a time or "now"', value)
        return None
    try:
        since_us(value, started_us=0, now_us=0)
    except InvalidInput as e:
        r.error(path, str(e))
        return None
    return Template.literal(value)


def message_name(r: Reader, value: Any, path: Path, what: str, scope: Scope) -> Template | None:
    if isinstance(value, str) and "${" in value:
        return r.template(value, path, scope)
    name = r.name_of(value, path, what)
    return None if name is None else Template.literal(name)
