"""Late messages: those that were acknowledged after the last fact on which the code of a run ended, and before its end was written.

    ... command | fact fact ... fact -> the code ends        message -> acknowledged        (the end would be written here)
                '- cut

Such an end is not written. The messages are recorded, then `EndWithdrawn`, and the code is run once more on a history in which they came
before the cut: before the first of the facts since the code last asked for anything, or last got a message. So a cart that was about to
close on a timer reads the item that came at that moment.

Nothing that is recorded contradicts the new order. Between the cut and the end the code asked for nothing, so no command has to be matched
there; and no message is moved before another, so each sender's order stays.

Invariants:

1. `in_order` is a function of the history alone, and in_order(in_order(h)) is in_order(h).
2. It moves messages, and nothing else. Numbers stay what they were; a moved message has the time of the fact that it now precedes.
3. Where the code ended on a message, or on the result of a side effect, nothing can be moved: the order stays, and the code ends again.
"""

from __future__ import annotations

from typing import Final

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.events import Recorded

MESSAGES: Final = frozenset({ev.SignalReceived, ev.PromiseResolved, ev.UpdateReceived, ev.CancelRequested})
_PASSED: Final = frozenset(
    {ev.TasksSucceeded, ev.TaskFailed, ev.TimerFired, ev.ChildSucceeded, ev.ChildFailed, ev.ChildCancelled}
)
"""Facts before which a message may be put. Not the result of a side effect: code that asked for it must ask for it again."""


def note_late(end: cm.CompleteRun, record: Recorded) -> None:
    """The code had ended when it was given this record."""
    if type(record.event) in MESSAGES:
        end.late.append(record.seq)
    if isinstance(record.event, ev.SignalReceived):
        end.unread.append((record.event.name, record.event.value))


def put_in_order(seen: list[Recorded], withdrawn: ev.EndWithdrawn) -> list[Recorded]:
    """The history with the messages from `withdrawn.first` on before the cut."""
    early = [r for r in seen if r.seq < withdrawn.first or type(r.event) not in MESSAGES]
    late = [r for r in seen if r.seq >= withdrawn.first and type(r.event) in MESSAGES]
    at = _cut(early, withdrawn.first)
    if at == len(early):
        return seen
    moved = [Recorded(r.seq, early[at].at_us, r.event) for r in late]
    return [*early[:at], *moved, *early[at:]]


def _cut(early: list[Recorded], first: int) -> int:
    """Where in the list messages can be put. What was recorded while the code decided is behind all of it."""
    at = len(early)
    while at and early[at - 1].seq >= first:
        if type(early[at - 1].event) not in _PASSED:
            return len(early)
        at -= 1
    while at and type(early[at - 1].event) in _PASSED:
        at -= 1
    return at
