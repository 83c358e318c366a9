"""Named events that start runs of a workflow, as they are declared and stored. core/event_starts.py says what they mean.

It does not load the expression language: clients and workers read this without using it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import SUBSCRIPTIONS_BYTES_MAX, SUBSCRIPTIONS_MAX


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An event that starts runs. Texts are expressions over `event`, the payload."""

    event: str
    match: str = ""
    """Empty: every event of the name."""
    key: str = ""
    """The run's key; an active run under it stands for the event."""
    dedup: str = ""
    """A second event with the same value is answered with the run of the first."""
    within_us: int = 0
    """For how long; 0: until that run has ended."""
    input: dict[str, Any] | None = None
    """With expressions in `${ }`; None: the payload."""
    argument: str = ""
    """Where there is no `input`: the parameter that takes the whole payload; empty: its fields are offered by name."""


_subscriptions: Final = msgspec.json.Decoder(list[Subscription])


def encode(subscriptions: Sequence[Subscription]) -> bytes:
    """As they are stored; empty where there are none. InvalidInput when they are too many or too long."""
    if not subscriptions:
        return b""
    if len(subscriptions) > SUBSCRIPTIONS_MAX:
        raise InvalidInput(
            f"a workflow subscribes to SUBSCRIPTIONS_MAX={SUBSCRIPTIONS_MAX} events at most, not {len(subscriptions)}"
        )
    data = msgspec.json.encode(subscriptions)
    if len(data) > SUBSCRIPTIONS_BYTES_MAX:
        raise InvalidInput(
            f"the subscriptions of a workflow have {len(data)} bytes, over the limit SUBSCRIPTIONS_BYTES_MAX={SUBSCRIPTIONS_BYTES_MAX}"
        )
    return data


def decode(data: bytes | str) -> list[Subscription]:
    """Empty for what this version cannot read: a newer worker may say more than this server knows."""
    try:
        return _subscriptions.decode(data) if data else []
    except msgspec.MsgspecError:
        return []


def events_of(data: bytes | str) -> list[str] | None:
    """Names of the events, for the index; None: there are none."""
    return sorted({s.event for s in decode(data)}) or None
