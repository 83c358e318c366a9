"""The life of a message: what becomes of it when something happens to its run. Nothing else decides that.

A message is addressed to a run, or to the last run of a chain (wf.continue_as_new). An answer (the votes of an approval, the event of a
wait) is addressed to one question of one run: `question_of` in core/questions.py. A message has one of these states:

    pending    a row of perdure.inbox: acknowledged, not recorded yet
    consumed   an event in the history of its run, written in the transaction that deletes the row
    refused    never acknowledged: its sender has an error
    set aside  a row of perdure.set_aside_message, with the reason: its run ended first

Invariants:

1. A message that was acknowledged is in exactly one of these places until its run is deleted: pending, consumed or set aside. A request to
   stop or to pause (`DROP`) is the exception: the end of the run is what it asked for, or has overtaken it.
2. A run that ends and a message that arrives exclude each other: the sender holds KEY SHARE on the run's row, its end deletes the row, and
   the same transaction then looks for messages once more (perdure.find_unread, commit_batch_rest).
3. An answer is consumed by the question it was given to, or by none.

What happens to a pending message when its run ends:

             succeeds       fails       cancelled,   continues
                                        terminated   as new
    signal   DECIDE_AGAIN   SET_ASIDE   SET_ASIDE    FORWARD
    promise  DECIDE_AGAIN   SET_ASIDE   SET_ASIDE    FORWARD
    answer   DECIDE_AGAIN   SET_ASIDE   SET_ASIDE    SET_ASIDE   its question stays behind
    update   DECIDE_AGAIN   SET_ASIDE   SET_ASIDE    FORWARD
    cancel   DROP           DROP        DROP         FORWARD
    terminate DROP          DROP        DROP         FORWARD
    pause    DROP           DROP        DROP         FORWARD
    child    DROP           DROP        DROP         DROP        results of what the ended run asked for
    task     DROP           DROP        DROP         DROP

A signal that would have started its run (signal_with_start), and that the run leaves unread when it succeeds, goes to the next run under the
key, which starts in the same commit. That run is the last if it reads none of its signals.

What happens to it later, and to what answers a question:

    retry           a message that was set aside is pending again; DROP for requests to stop or pause that are older than the retry
    fork            the copy has what the history has: consumed messages. Pending and set aside ones stay with the original
    fork, edited    an answer whose question was asked after the edited result is left out of the copy
    rerun           a new run: it has no messages
    stuck, resume,  pending messages stay pending
    pause, version
    delete, retention   messages, votes and keys go with the run. A chain keeps its first id as long as its last run exists
    export, import  the history, with what was consumed
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class InboxKind(StrEnum):
    """Kinds of messages: `inbox.kind`."""

    SIGNAL = "signal"
    PROMISE = "promise"
    ANSWER = "answer"
    UPDATE = "update"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    PAUSE = "pause"
    CHILD = "child"
    TASK = "task"


class Ending(StrEnum):
    """How a run ends. A terminated run is a cancelled one."""

    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CONTINUED = "continued"


class Fate(StrEnum):
    DECIDE_AGAIN = "decide"
    """The end is not written. The run gets the message and is decided once more (core/late_messages.py); then SET_ASIDE."""
    SET_ASIDE = "aside"
    FORWARD = "forward"
    """It moves on to the run that continues."""
    DROP = "drop"


_D, _A, _F, _X = Fate.DECIDE_AGAIN, Fate.SET_ASIDE, Fate.FORWARD, Fate.DROP


def _row(success: Fate, failed: Fate, cancelled: Fate, continued: Fate) -> dict[Ending, Fate]:
    fates = (success, failed, cancelled, continued)
    return dict(zip(Ending, fates, strict=True))


FATES: Final[Mapping[InboxKind, Mapping[Ending, Fate]]] = {
    InboxKind.SIGNAL: _row(_D, _A, _A, _F),
    InboxKind.PROMISE: _row(_D, _A, _A, _F),
    InboxKind.ANSWER: _row(_D, _A, _A, _A),
    InboxKind.UPDATE: _row(_D, _A, _A, _F),
    InboxKind.CANCEL: _row(_X, _X, _X, _F),
    InboxKind.TERMINATE: _row(_X, _X, _X, _F),
    InboxKind.PAUSE: _row(_X, _X, _X, _F),
    InboxKind.CHILD: _row(_X, _X, _X, _X),
    InboxKind.TASK: _row(_X, _X, _X, _X),
}

KEPT: Final = tuple(kind for kind, row in FATES.items() if Fate.DROP not in row.values())
"""Kinds that are never dropped: acknowledged means durable."""
ROWS: Final = tuple((end.value, kind.value, fate.value) for kind, row in FATES.items() for end, fate in row.items())
"""The table as the statements of a commit join it."""


def fate_of(kind: InboxKind, ending: Ending) -> Fate:
    return FATES[kind][ending]
