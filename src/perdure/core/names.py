"""Names of workflows, tasks, queues, runs, signals, events and the like: one rule for all of them.

Names stand in terminals, logs and pages. A control character in one could move a cursor or forge a line, a bidirectional override could
show another name than the one that is there. So a name has neither.
"""

from __future__ import annotations

import re
from typing import Final

from perdure.core.errors import InvalidInput
from perdure.core.limits import MESSAGE_KEY_CHARS_MAX, NAME_CHARS_MAX

UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (C0, DEL, C1), line and paragraph separators, bidirectional marks and overrides, lone surrogates."""
_SHOWN: Final = 50
"""Characters of a bad name that an error shows."""


def checked_name(kind: str, name: str, most: int = NAME_CHARS_MAX) -> str:
    """The name, if it is one. `kind` says whose: `signal`, `queue`."""
    if 0 < len(name) <= most and (name.isprintable() or not UNSAFE.search(name)):  # what is printable is never unsafe
        return name
    raise InvalidInput(invalid_name(kind, name, most))


def check_message_key(key: str) -> None:
    """The sender's own key of a message or event; empty for none."""
    if key:
        checked_name("message key", key, MESSAGE_KEY_CHARS_MAX)


def invalid_name(kind: str, name: str, most: int = NAME_CHARS_MAX) -> str:
    return f"invalid {kind} name {shown(name)}: use 1 to {most} characters without control characters"


def shown(name: str) -> str:
    """For a message: quoted, escaped and not endless."""
    text = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    return f"'{escaped(text, keep='')}'"


def escaped(text: str, keep: str = "\n\t") -> str:
    r"""What a terminal would obey is written out, as JSON does: an escape character is \u001b."""
    return UNSAFE.sub(lambda m: m[0] if m[0] in keep else f"\\u{ord(m[0]):04x}", text)
