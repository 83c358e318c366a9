"""The outcome of a message as the statements report it, and the limits of messages that wait for a run.

A limit refuses the sender, never the run. It is asked in the statement that would write the message, while that holds the run's row
(perdure.limit_outcome), so each door and each engine gives the same answer. A repetition is recognized first: what was taken is never refused
later. Requests to cancel or terminate are always taken.
"""

from __future__ import annotations

from typing import Final

from perdure.core.errors import LimitReached
from perdure.core.ids import text
from perdure.core.limits import MESSAGES_PENDING_MAX, SIGNALS_BUFFERED_MAX

TAKEN: Final = 0
REPEATED: Final = 1
NOT_THERE: Final = 2
"""No such run is active."""
HELD: Final = 3
"""The run's row is locked: try again."""
INBOX_FULL: Final = 4
"""MESSAGES_PENDING_MAX"""
SIGNALS_FULL: Final = 5
"""SIGNALS_BUFFERED_MAX"""


def limit_error(outcome: int, run_id: bytes, name: str | None) -> LimitReached | None:
    """None: no limit refuses the message."""
    if outcome == INBOX_FULL:
        return LimitReached(
            f"run {text(run_id)} has MESSAGES_PENDING_MAX={MESSAGES_PENDING_MAX} unread messages and no engine executes it. Resume it "
            "if it is paused, or start a worker that serves it."
        )
    if outcome == SIGNALS_FULL:
        return LimitReached(
            f"run {text(run_id)} has SIGNALS_BUFFERED_MAX={SIGNALS_BUFFERED_MAX} unread signals {name!r}. Send more when its code has "
            "read half of them."
        )
    return None
