"""The messages that a version of a workflow reads, as far as a sender is checked against them: names, and JSON Schemas of their values.

A worker publishes those of its code with the workflow; those of a flow follow from its document.

Laws:

1. A version that has published nothing is not judged.
2. An `open` version may read names that it does not list: its code makes some while it runs. Those it lists are checked all the same.
3. A value fits a name if it fits one of its schemas; without schemas every value fits. A schema that cannot be used here judges nothing.
4. Promises of approvals and of named events are named after these (core/waits.py), and take any value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal

import msgspec

from perdure.core.json_schema import CheckedSchema
from perdure.core.waits import EVENT_PREFIX

MessageKind = Literal["signal", "promise", "update"]

NAMES_SHOWN: Final = 10
"""Names that a refusal lists."""
_NTH: Final = re.compile(r"(\[\d+\])?(#\d+)?$")
"""What the second question of an approval, and one for each item of a spread, add to its name."""

Schemas = Mapping[str, tuple[dict[str, Any], ...]]
"""Name -> JSON Schemas of which a value must fit one; none: any value."""


class PublishedMessages(msgspec.Struct, frozen=True, omit_defaults=True):
    signals: Schemas = {}
    promises: Schemas = {}
    updates: Schemas = {}
    approvals: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    open: bool = False
    """Its code may read other names too."""


_decoder: Final = msgspec.json.Decoder(PublishedMessages)


def encode(published: PublishedMessages) -> bytes:
    return msgspec.json.encode(published, order="deterministic")


def decode(data: bytes | str) -> PublishedMessages | None:
    """None for what this version cannot read: then nothing is checked."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


class MessageChecks:
    """What was published, ready to judge messages: a look-up and one schema check each."""

    __slots__ = ("_names", "_published", "_schemas")

    def __init__(self, published: PublishedMessages) -> None:
        self._published = published
        self._names: Mapping[str, Schemas] = {
            "signal": published.signals,
            "promise": published.promises,
            "update": published.updates,
        }
        self._schemas: dict[tuple[str, str], tuple[CheckedSchema, ...]] = {}

    def knows(self, kind: MessageKind, name: str) -> bool:
        """Whether its code may read a message of this name."""
        published = self._published
        if name in self._names[kind] or published.open:
            return True
        return kind == "promise" and (
            name.startswith(EVENT_PREFIX) or name in published.approvals or _NTH.sub("", name) in published.approvals
        )

    def misfit(self, kind: MessageKind, name: str, value: bytes) -> str:
        """Why the value does not fit the type of this name; "" when it does."""
        checked = self._schemas.get((kind, name))
        if checked is None:
            checked = self._checked(kind, name)
        if not checked:
            return ""
        try:
            given = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return "the value is not JSON, or is nested too deep"
        wrong = ""
        for schema in checked:
            found = schema.problem(given, "the value")
            if not found:
                return ""
            wrong = wrong or found
        return wrong

    def _checked(self, kind: MessageKind, name: str) -> tuple[CheckedSchema, ...]:
        schemas = self._names[kind].get(name)
        if schemas is None:
            return ()
        usable = [CheckedSchema.of(schema) for schema in schemas]
        checked = tuple(one for one in usable if one is not None)
        if len(checked) < len(usable):  # one that cannot be used here might be the one that fits
            checked = ()
        self._schemas[kind, name] = checked
        return checked

    def unknown(self, kind: MessageKind, name: str) -> str:
        """What a sender of an unknown name may have meant, as sentences."""
        names: Iterable[str] = self._names[kind]
        if kind == "promise":
            names = (*names, *self._published.approvals)
        known = sorted(names)
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        more = f" and {len(known) - NAMES_SHOWN} more" if len(known) > NAMES_SHOWN else ""
        listed = ", ".join(known[:NAMES_SHOWN]) + more if known else f"no {kind}s"
        return f"{hint}It reads {listed}."
