"""`triggers:` of a flow: schedules that come and go with its document.

    triggers:
      - cron: "0 8 * * *"
        tz: Europe/Paris
        with: {day: "${ day }"}

Laws:

1. What a trigger gives to its runs fits the flow's input, or the document does not compile.
2. `with` is evaluated when it fires; it sees the nominal time and nothing else. Without it the same values are offered, and the input
   takes those that it has a name for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from perdure.core.calls import encode_json, encode_offer
from perdure.core.errors import InvalidInput
from perdure.core.expressions import ExprError
from perdure.core.expressions.template import Template
from perdure.core.json_schema import completed
from perdure.core.limits import TRIGGERS_MAX
from perdure.core.schedules import SPEC_KEYS, parse_spec
from perdure.flows.compile.reading import Reader, Scope
from perdure.flows.model import Trigger
from perdure.flows.problems import Path
from perdure.flows.scheduled import OFFERED, check_name, values_at

TRIGGER_KEYS: Final = ("name", "with", *SPEC_KEYS)
SAMPLE_US: Final = 946_728_000_000_000
"""What `with` is tried out with: noon of the first day of 2000."""
_SCOPE: Final = Scope(frozenset(OFFERED), {})
_FIRST_WORD: Final = re.compile(r"\w+")


def read_triggers(r: Reader, flow: str, value: Any, schema: Mapping[str, Any] | None) -> tuple[Trigger, ...]:
    """`schema` of the flow's input; None takes anything."""
    path: Path = ("triggers",)
    items = r.list_of(value, path, "triggers") if value is not None else None
    if not items:
        return ()
    if len(items) > TRIGGERS_MAX:
        r.error(path, f"there are more than TRIGGERS_MAX={TRIGGERS_MAX} triggers", key=True)
        return ()
    found: dict[str, Trigger] = {}
    for i, item in enumerate(items):
        at = (*path, i)
        fields = r.mapping(item, at, "a trigger")
        if fields is None:
            continue
        trigger = _trigger(r, flow, fields, at, i + 1 if len(items) > 1 else 0, schema)
        if trigger is not None and trigger.name in found:
            r.error(at, f"two triggers are called {trigger.name!r}", "give one of them another name")
        elif trigger is not None:
            found[trigger.name] = trigger
    return tuple(found.values())


def _trigger(
    r: Reader, flow: str, fields: Mapping[str, Any], at: Path, number: int, schema: Mapping[str, Any] | None
) -> Trigger | None:
    before = len(r.problems)
    r.keys(fields, at, "a trigger", TRIGGER_KEYS)
    name = _name(r, flow, fields, at, number)
    spec = None
    try:
        spec = parse_spec({k: v for k, v in fields.items() if k in SPEC_KEYS})
    except InvalidInput as e:
        word = _FIRST_WORD.match(str(e))
        at_fault = word[0] if word and word[0] in fields else None
        r.error((*at, at_fault) if at_fault else at, str(e))
    given = _input(r, fields, at, schema)
    return Trigger(name=name, spec=spec, input=given) if spec is not None and len(r.problems) == before else None


def _name(r: Reader, flow: str, fields: Mapping[str, Any], at: Path, number: int) -> str:
    if fields.get("name") is None:
        return f"{flow}/{number}" if number else flow
    given = r.name_of(fields["name"], (*at, "name"), "the name of a trigger") or "?"
    try:
        return check_name(f"{flow}/{given}")
    except InvalidInput as e:
        r.error((*at, "name"), str(e))
        return "?"


def _input(r: Reader, fields: Mapping[str, Any], at: Path, schema: Mapping[str, Any] | None) -> bytes:
    given = fields.get("with")
    offered = given is None
    value = {root: f"${{ {root} }}" for root in OFFERED} if offered else r.mapping(given, (*at, "with"), "with")
    if value is None:
        return b""
    made = r.template(value, (*at, "with"), _SCOPE) if not offered else Template.make(value)
    if made is None:
        return b""
    try:
        tried = made.evaluate(values_at("sample", "UTC", SAMPLE_US).__getitem__)
    except ExprError as e:
        r.error((*at, "with"), f"with: {e.message}")
        return b""
    _, said = completed(schema, tried, offered=offered)
    if said:
        place = (*at, "with") if not offered else at
        r.error(place, f"the runs of this trigger would fail: {said}", _hint(offered))
    return encode_offer(value) if offered else encode_json(cast(dict[str, Any], given))


def _hint(offered: bool) -> str:
    return f"give the input in with:; it may read {', '.join(OFFERED)}" if offered else ""
