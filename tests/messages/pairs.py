"""What becomes of a message when something happens to its run: a table of acts and kinds, and the doors that each kind has.

The table is written by hand, not computed from core/message_life.py: it says what senders and readers see. test_pairs.py does every act
with every kind through every door of the kind. docs/generate.py writes docs/reference/messages-and-acts.md from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    SIGNAL = "signal"
    SIGNAL_WITH_START = "signal with start"
    PROMISE = "promise value"
    DECISION = "decision"
    VOTE = "vote"
    DELEGATION = "delegation"
    UPDATE = "update"
    EVENT = "named event"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    PAUSE = "pause"
    QUERY = "query"
    STATE = "state"


class Door(StrEnum):
    EMBEDDED = "Python"
    REST = "REST"
    GRPC = "gRPC"
    CLI = "command line"
    SQL = "SQL"
    LINK = "link"
    WEBHOOK = "webhook"


_CALLS: Final = (Door.EMBEDDED, Door.REST, Door.GRPC, Door.CLI)
DOORS: Final[Mapping[Kind, tuple[Door, ...]]] = {
    Kind.SIGNAL: (*_CALLS, Door.SQL, Door.WEBHOOK),
    Kind.SIGNAL_WITH_START: (*_CALLS, Door.WEBHOOK),
    Kind.PROMISE: (*_CALLS, Door.LINK),
    Kind.DECISION: (*_CALLS, Door.LINK),
    Kind.VOTE: (*_CALLS, Door.LINK),
    Kind.DELEGATION: _CALLS,
    Kind.UPDATE: _CALLS,
    Kind.EVENT: (*_CALLS, Door.SQL, Door.WEBHOOK),
    Kind.CANCEL: _CALLS,
    Kind.TERMINATE: _CALLS,
    Kind.PAUSE: _CALLS,
    Kind.QUERY: _CALLS,
    Kind.STATE: _CALLS,
}
NOTES: Final[Mapping[Kind, str]] = {
    Kind.DECISION: "the answer that decides an approval",
    Kind.VOTE: "an answer to an approval that needs more of them",
}


class Act(StrEnum):
    NONE = "nothing"
    PAUSE = "pause, resume"
    STUCK = "stuck, resume"
    SUCCESS = "success"
    SUCCESS_UNREAD = "success, not read"
    FAILURE = "failure"
    RETRY = "failure, retry"
    CANCEL = "cancellation"
    TERMINATE = "termination"
    CANCELLED_CHILD = "parent closes: cancel"
    TERMINATED_CHILD = "parent closes: terminate"
    ABANDONED_CHILD = "parent closes: abandon"
    CONTINUE = "continue as new"
    AFTER_END = "after the end"
    UNKNOWN_RUN = "unknown run"
    UNKNOWN_NAME = "unknown name"
    MISFIT = "misfit"
    FORK = "fork"
    FORK_PENDING = "fork, not recorded"
    FORK_EDITED = "fork, edited result"
    RERUN = "rerun"
    DELETE = "deletion"


WHEN: Final[Mapping[Act, str]] = {
    Act.NONE: "The run waits for the message.",
    Act.PAUSE: "The message arrives while the run is paused. You resume the run.",
    Act.STUCK: "The message arrives while the run is stuck. You resume the run.",
    Act.SUCCESS: "The run's code ends without a message it waits for. The message arrives before the end is written.",
    Act.SUCCESS_UNREAD: "The same, and the code never reads the message.",
    Act.FAILURE: "The message arrives before the failure is written.",
    Act.RETRY: "The same, and you retry the run.",
    Act.CANCEL: "The message arrives before the end of a run that you cancelled is written.",
    Act.TERMINATE: "The message arrives before the end of a run that you terminated is written.",
    Act.CANCELLED_CHILD: 'The parent of the run ends, with `parent_close="cancel"`. The message arrives before the child\'s end is written.',
    Act.TERMINATED_CHILD: 'The same, with `parent_close="terminate"`.',
    Act.ABANDONED_CHILD: 'The same, with `parent_close="abandon"`. The child doesn\'t end.',
    Act.CONTINUE: "The message arrives before the run's continuation is written.",
    Act.AFTER_END: "The message arrives after the run's end.",
    Act.UNKNOWN_RUN: "The message names a run that doesn't exist.",
    Act.UNKNOWN_NAME: "The message has a name that the run's code doesn't have.",
    Act.MISFIT: "The message has a value that doesn't fit the type in the run's code.",
    Act.FORK: "The run has recorded the message. You fork it after that.",
    Act.FORK_PENDING: "The message arrives while the run is paused. You fork the run at its last event before the message.",
    Act.FORK_EDITED: "The run has recorded the message. You fork it with another result of an earlier task.",
    Act.RERUN: "The run has recorded the message. You rerun it.",
    Act.DELETE: "The message arrives before the failure is written. You delete the failed run.",
}

DELIVERED: Final = "delivered"
RECORDED: Final = "recorded"
SET_ASIDE: Final = "set aside"
STARTS_RUN: Final = "starts a run"
IN_EFFECT: Final = "takes effect"
NO_EFFECT: Final = "no effect"
COUNTS: Final = "counts"
OVER: Final = "closed"
ANSWERED: Final = "answered"
COPIED: Final = "copied"
FOUND_AGAIN: Final = "found again"
STAYS: Final = "stays"
ASKED_AGAIN: Final = "asked again"
DELETED: Final = "deleted"


def refused(code: str) -> str:
    return f"refused: {code}"


FINISHED: Final = refused("run_finished")
NOT_FOUND: Final = refused("not_found")
INVALID: Final = refused("invalid_input")
MISFIT: Final = refused("payload_mismatch")
REJECTED: Final = refused("update_rejected")
LATER: Final = refused("unavailable")
UNSET: Final = "not set"
NO_PAIR: Final = "not possible"
MEANINGS: Final[Mapping[str, str]] = {
    DELIVERED: "The code of the run, or of the run it continued as, reads the message.",
    RECORDED: "The message is in the run's history. The code ends without reading it.",
    SET_ASIDE: "The message is listed under `unread` of the run that has ended.",
    STARTS_RUN: "Another run starts under the key and gets the signal.",
    IN_EFFECT: "The run, or the run it continued as, is cancelled, terminated or paused. At its deadline the run fails.",
    NO_EFFECT: "Nothing changes, also after a retry. The message isn't listed.",
    COUNTS: "The approval has the vote, or asks the delegate.",
    OVER: "The approval ends with the run. A retry that asks the same question again has the vote or the delegation.",
    ANSWERED: "The caller gets the value as of the run's last commit.",
    COPIED: "The copy has the message, too.",
    FOUND_AGAIN: "The next run, or the copy, looks back to its own start. It finds the event, if it still matches. A run that has ended lists the event under `unread`.",
    STAYS: "The copy doesn't have the message. The original keeps it.",
    ASKED_AGAIN: "The next run, or the copy, asks by itself, without a value, votes or delegations.",
    DELETED: "The message, votes and delegations are deleted with the run.",
    FINISHED: "The sender gets the error `run_finished`.",
    NOT_FOUND: "The sender gets the error `not_found`. A webhook gets `unavailable`, so the provider repeats the delivery.",
    INVALID: "The sender gets the error `invalid_input`, with the names that the run's code has.",
    MISFIT: "The sender gets the error `payload_mismatch`, with what the type expects.",
    REJECTED: "The sender gets the error `update_rejected`, with the same words.",
    UNSET: "Python returns the default of the `State`. The other doors refuse with `not_found`.",
    NO_PAIR: "The request has no such name, or no value with a type.",
}

_K = Kind
_READ: Final = (_K.SIGNAL, _K.SIGNAL_WITH_START, _K.PROMISE, _K.DECISION, _K.UPDATE, _K.EVENT)
_ASKED: Final = (_K.VOTE, _K.DELEGATION)
_STOPS: Final = (_K.CANCEL, _K.TERMINATE)
_READS: Final = (_K.QUERY, _K.STATE)
_GOES_ON: Final = {DELIVERED: _READ, COUNTS: _ASKED, IN_EFFECT: (*_STOPS, _K.PAUSE), ANSWERED: _READS}
_RESUMED: Final = {**_GOES_ON, IN_EFFECT: _STOPS, NO_EFFECT: (_K.PAUSE,)}
_ENDS: Final = {OVER: _ASKED, NO_EFFECT: _STOPS, FINISHED: (_K.PAUSE,), ANSWERED: _READS}
_KEEPS: Final = {SET_ASIDE: _READ, **_ENDS}

_WRITTEN: Final[Mapping[Act, Mapping[str, tuple[Kind, ...]]]] = {
    Act.NONE: _GOES_ON,
    Act.PAUSE: _RESUMED,
    Act.STUCK: _RESUMED,
    Act.SUCCESS: {DELIVERED: _READ, **_ENDS},
    Act.SUCCESS_UNREAD: {
        RECORDED: (_K.SIGNAL, _K.PROMISE, _K.DECISION, _K.UPDATE, _K.EVENT),
        STARTS_RUN: (_K.SIGNAL_WITH_START,),
        **_ENDS,
    },
    Act.FAILURE: _KEEPS,
    Act.RETRY: {**_ENDS, DELIVERED: _READ, COUNTS: _ASKED, OVER: ()},
    Act.CANCEL: _KEEPS,
    Act.TERMINATE: _KEEPS,
    Act.CANCELLED_CHILD: _KEEPS,
    Act.TERMINATED_CHILD: _KEEPS,
    Act.ABANDONED_CHILD: _GOES_ON,
    Act.CONTINUE: {
        DELIVERED: (_K.SIGNAL, _K.SIGNAL_WITH_START, _K.PROMISE, _K.UPDATE),
        SET_ASIDE: (_K.DECISION,),
        FOUND_AGAIN: (_K.EVENT,),
        ASKED_AGAIN: _ASKED,
        IN_EFFECT: (*_STOPS, _K.PAUSE),
        ANSWERED: _READS,
    },
    Act.AFTER_END: {
        FINISHED: (_K.SIGNAL, _K.PROMISE, _K.DECISION, *_ASKED, _K.UPDATE, *_STOPS, _K.PAUSE),
        STARTS_RUN: (_K.SIGNAL_WITH_START,),
        NO_EFFECT: (_K.EVENT,),
        ANSWERED: _READS,
    },
    Act.UNKNOWN_RUN: {
        NOT_FOUND: (_K.SIGNAL, _K.PROMISE, _K.DECISION, *_ASKED, _K.UPDATE, *_STOPS, _K.PAUSE, *_READS),
        STARTS_RUN: (_K.SIGNAL_WITH_START,),
        NO_EFFECT: (_K.EVENT,),
    },
    Act.UNKNOWN_NAME: {
        INVALID: (_K.SIGNAL, _K.SIGNAL_WITH_START, _K.PROMISE),
        REJECTED: (_K.UPDATE,),
        NOT_FOUND: (_K.DECISION, *_ASKED, _K.QUERY),
        UNSET: (_K.STATE,),
        NO_EFFECT: (_K.EVENT,),
        NO_PAIR: (*_STOPS, _K.PAUSE),
    },
    Act.MISFIT: {
        MISFIT: (_K.SIGNAL, _K.SIGNAL_WITH_START, _K.PROMISE),
        REJECTED: (_K.UPDATE,),
        NO_EFFECT: (_K.EVENT,),
        NO_PAIR: (_K.DECISION, *_ASKED, *_STOPS, _K.PAUSE, *_READS),
    },
    Act.FORK: {
        COPIED: (*_READ, _K.CANCEL),
        ASKED_AGAIN: _ASKED,
        STAYS: (_K.TERMINATE, _K.PAUSE),
        ANSWERED: _READS,
    },
    Act.FORK_PENDING: {
        STAYS: (_K.SIGNAL, _K.SIGNAL_WITH_START, _K.UPDATE, *_STOPS, _K.PAUSE),
        ASKED_AGAIN: (_K.PROMISE, _K.DECISION, *_ASKED),
        FOUND_AGAIN: (_K.EVENT,),
        ANSWERED: _READS,
    },
    Act.FORK_EDITED: {
        COPIED: (_K.SIGNAL, _K.SIGNAL_WITH_START, _K.UPDATE),
        ASKED_AGAIN: (_K.PROMISE, _K.DECISION, *_ASKED),
        FOUND_AGAIN: (_K.EVENT,),
        STAYS: (*_STOPS, _K.PAUSE),
        ANSWERED: _READS,
    },
    Act.RERUN: {
        STAYS: (_K.SIGNAL, _K.SIGNAL_WITH_START, _K.UPDATE, *_STOPS, _K.PAUSE),
        ASKED_AGAIN: (_K.PROMISE, _K.DECISION, *_ASKED, _K.EVENT),
        ANSWERED: _READS,
    },
    Act.DELETE: {DELETED: (*_READ, *_ASKED), NO_EFFECT: _STOPS, FINISHED: (_K.PAUSE,), ANSWERED: _READS},
}


def read_table(written: Mapping[Act, Mapping[str, tuple[Kind, ...]]]) -> Mapping[Act, Mapping[Kind, str]]:
    """One outcome for each pair."""
    table: dict[Act, dict[Kind, str]] = {}
    for act, outcomes in written.items():
        row = table[act] = {}
        for outcome, kinds in outcomes.items():
            for kind in kinds:
                assert kind not in row, f"{act.value} has two outcomes for {kind.value}"
                row[kind] = outcome
    return table


TABLE: Final = read_table(_WRITTEN)
_BEHIND_A_LINK: Final = (Act.UNKNOWN_RUN, Act.UNKNOWN_NAME)


def doors(act: Act, kind: Kind) -> tuple[Door, ...]:
    """A link has the run and the name in it."""
    if TABLE[act][kind] == NO_PAIR:
        return ()
    return tuple(door for door in DOORS[kind] if door is not Door.LINK or act not in _BEHIND_A_LINK)


def outcome(act: Act, kind: Kind, door: Door) -> str:
    """At this door: two doors differ from the table for a reason."""
    found = TABLE[act][kind]
    if found == NOT_FOUND and door is Door.WEBHOOK:  # the provider repeats the delivery, and the run may exist by then
        return LATER
    if found == UNSET and door not in (Door.EMBEDDED, Door.GRPC):  # these doors have no default
        return NOT_FOUND
    return found


class Fact(StrEnum):
    """What comes to a run through no door."""

    CHILD = "child's result"
    TIMER = "timer"
    DEADLINE = "deadline"


_NO_FACT: Final = dict.fromkeys(Fact, NO_EFFECT)
_COMES: Final = {Fact.CHILD: DELIVERED, Fact.TIMER: DELIVERED, Fact.DEADLINE: IN_EFFECT}
FACTS: Final[Mapping[Act, Mapping[Fact, str]]] = {
    Act.NONE: _COMES,
    Act.PAUSE: _COMES,
    Act.SUCCESS: _NO_FACT,
    Act.FAILURE: _NO_FACT,
    Act.RETRY: {**_COMES, Fact.DEADLINE: NO_EFFECT},
    Act.CANCEL: _NO_FACT,
    Act.TERMINATE: _NO_FACT,
    Act.CONTINUE: dict.fromkeys(Fact, ASKED_AGAIN),
}
"""What becomes of a fact that comes after the act, and before the run is resumed or retried."""
FACTS_SEEN: Final = (
    "No door sends these. They come after the act, and before you resume or retry the run.",
    "",
    "- After a continuation, the next run starts its own child and its own timer, and has a deadline of its own.",
    "- After a retry, the run has no deadline.",
    "- A paused run fails at its deadline. You don't resume it.",
)

ELSEWHERE: Final[Mapping[str, str]] = {
    "A task's result": "It belongs to the step that the run waits for. It is dropped with the run's end.",
    "Export and import": (
        "Only ended runs are exported: the history with its messages. Messages that were set aside aren't exported. "
        "Checked by `Story.imported` in `tests/messages/story.py`."
    ),
    "Retention": "As deletion. Checked by `Story.removed`, and by `test_retention_leaves_the_way_to_a_living_chain`.",
    "Another version of the code": (
        "Pending messages stay pending. If the new code can't read a message, the run is stuck with the reason `payload_mismatch`. "
        "Checked by `Story.tell_second`, and by `tests/e2e/test_unreadable_messages.py`."
    ),
}
"""Pairs that have no cell: nobody sends the message, or another test stages the act."""


def write_page() -> str:
    """The generated part of docs/reference/messages-and-acts.md."""
    kinds = [("Messages", (*_READ, *_ASKED)), ("Requests and reads", (*_STOPS, _K.PAUSE, *_READS))]
    out: list[str] = []
    for title, columns in kinds:
        out += [
            "",
            f"## {title}",
            "",
            f"| | {' | '.join(kind.value for kind in columns)} |",
            f"|---|{'---|' * len(columns)}",
        ]
        out += [f"| {act.value} | {' | '.join(TABLE[act][kind] for kind in columns)} |" for act in Act]
    out += ["", "## Results and times", "", *FACTS_SEEN, "", f"| | {' | '.join(Fact)} |", f"|---|{'---|' * len(Fact)}"]
    out += [f"| {act.value} | {' | '.join(row[fact] for fact in Fact)} |" for act, row in FACTS.items()]
    out += ["", "## Acts", "", "| act | when |", "|---|---|"]
    out += [f"| {act.value} | {WHEN[act]} |" for act in Act]
    out += ["", "## Outcomes", "", "| outcome | meaning |", "|---|---|"]
    out += [f"| {outcome} | {meaning} |" for outcome, meaning in MEANINGS.items()]
    out += ["", "## Doors", "", f"| | {' | '.join(door.value for door in Door)} |", f"|---|{'---|' * len(Door)}"]
    for kind in Kind:
        marks = " | ".join("yes" if door in DOORS[kind] else "no" for door in Door)
        note = f", {NOTES[kind]}" if kind in NOTES else ""
        out.append(f"| {kind.value}{note} | {marks} |")
    out += ["", "## Other pairs", "", "| | |", "|---|---|"]
    out += [f"| {what} | {why} |" for what, why in ELSEWHERE.items()]
    return "\n".join(out[1:])
