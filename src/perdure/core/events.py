"""What happened to a run, in the past tense.

Laws:

1. Events of a run are numbered 1.. without gaps and are never changed.
2. An event type is only ever extended by fields with defaults at the end; an old history must decode for ever.
3. A task, timer, child, promise or operation is named by its sequence number, counted per kind from 0 by the code that asked.
4. `TasksScheduled` and `TasksSucceeded` carry many tasks at once: a fan-out of 100,000 is a few hundred events.

Events hold no cycles, so garbage collection skips them (gc=False): histories are long.

Command events say what the code asked for (the journal matches against them); fact events say what the world answered
(the code resumes on them); terminal events end an epoch of the run.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, get_args

import msgspec

from perdure.core.errors import Failure, clip
from perdure.core.retry import TaskOptions


class PromiseKind(IntEnum):
    """What a promise stands for. Stored as these numbers."""

    PLAIN = 0
    APPROVAL = 1
    EVENT = 2


PARENT_CLOSE: Final = ("cancel", "terminate", "abandon")
"""Parent-close policies: the child is asked to stop, is ended at once, or goes on."""
PROMISE_WORDS: Final = ("promise", "approval", "event")
"""By PromiseKind: `promise.kind`."""


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="type", gc=False):
    pass


class RunStarted(_Event, frozen=True, gc=False, tag=1):
    workflow: str
    version: str
    input: bytes
    key: str = ""
    parent_id: bytes = b""
    parent_seq: int = -1
    deadline_us: int = 0
    continued_from: bytes = b""
    attributes: bytes = b""
    """A flat JSON object of search attributes; empty for none."""
    trace: str = ""
    """W3C traceparent of the caller that started the run."""
    known_as: bytes = b""
    """The id that the parent knows this child by, when it continues another run; empty: its own."""
    schedule: str = ""
    """The schedule that started it."""
    nominal_us: int = 0
    """The moment it was scheduled for; 0 when no schedule started it."""
    rerun_of: bytes = b""
    """The run whose input it was started with again, perhaps edited."""
    lineage: list[bytes] = []
    """Of a fork (core/run_fork.py): the run whose first events it was given comes last, the one that was never forked first."""
    forked_at: int = 0
    """The last of those events, by its number there."""
    start_at_us: int = 0
    """It does not begin before; 0: at once."""
    expires_us: int = 0
    """It fails if it has not begun by then; 0: it may wait for ever."""
    pinned: bool = False
    """Only workers that serve `version` execute it."""
    first: bytes = b""
    """Of a run that continues another: the first run of the chain, by which senders call it."""
    inherits: bool = False
    """It was started for signals that the run before it under its key had left unread."""


class CancelRequested(_Event, frozen=True, gc=False, tag=2):
    reason: str = ""
    deadline: bool = False
    """The run has reached its deadline: it undoes what it did and then fails, as timed out."""


class RunSucceeded(_Event, frozen=True, gc=False, tag=3):
    result: bytes


class RunFailed(_Event, frozen=True, gc=False, tag=4):
    failure: Failure
    cause: int = 0
    """Number of the first event whose failure brought the code down; 0 when none is known."""


class RunCancelled(_Event, frozen=True, gc=False, tag=5):
    reason: str = ""


class RunContinued(_Event, frozen=True, gc=False, tag=6):
    """The run ended in success by handing over to a fresh run with an empty history."""

    run_id: bytes
    input: bytes


class RunRetried(_Event, frozen=True, gc=False, tag=7):
    """A failed run is retried, in a new epoch. run_retry.py says what this voids; the fields here are for display."""

    cut: int
    """Number of the first voided event; 0: none, the decider continues from where it was (declarative runs)."""
    voided_tasks: list[int]
    """Tasks that failed and run again."""
    voided_children: list[int]
    """Children that are started anew. One that failed and was retried itself is not among them."""
    by: str = ""
    voided_timers: list[int] = []
    """Timers that ran out, brought the code down, and start over."""
    retried_children: list[int] = []
    """Of a declarative run, where nothing is taken back (`cut` is 0): failed children that were retried themselves and are waited for again."""


class RunBegan(_Event, frozen=True, gc=False, tag=8):
    """The run began later than it was started, because it waited for a limit or for a worker, or with other code than its starter had. Always
    event 2, and delivered together with event 1: the clock of the code begins here."""

    version: str = ""
    """Of the code that the run began with; empty: the one that it was started with."""
    pinned: bool = False
    """From now on only workers that serve this version execute it."""


class VersionChanged(_Event, frozen=True, gc=False, tag=17):
    """Another version of the code executes the run from here on. Its history is replayed on that code; the code itself sees nothing of this."""

    version: str
    before: str = ""
    """The version until now."""
    by: str = ""
    """Who moved it; empty: it is not pinned, and the engine did."""


class EndWithdrawn(_Event, frozen=True, gc=False, tag=18):
    """The code had ended, and messages had come that it had not been given. Its end was not written; it is run once more, with the messages
    from event `first` on before the facts on which it ended (core/late_messages.py)."""

    first: int


class RunForked(_Event, frozen=True, gc=False, tag=15):
    """The events before this one are copies of another run's. What follows happened to this run itself."""

    run_id: bytes
    """The other run."""
    at: int
    """The last event that was copied, by its number there."""
    edited: list[str] = []
    """Steps whose results were replaced, as `task 3` or `child 0`."""
    by: str = ""


class NodeOverridden(_Event, frozen=True, gc=False, tag=16):
    """An operator decided about a failed node of a flow. The `RunRetried` that follows carries it out."""

    node: str
    """Its label: with the bodies around it, and its place in a spread."""
    how: str
    """rerun, skip or set"""
    value: bytes = b""
    """Its output, where it was set."""
    by: str = ""


class RunTerminated(_Event, frozen=True, gc=False, tag=9):
    """An operator ended the run at once: none of its code ran, and nothing was undone."""

    reason: str = ""
    by: str = ""


def terminated(end: RunTerminated) -> Failure:
    """The error that the callers and the parent of a terminated run get."""
    by = f" by {end.by}" if end.by else ""
    return Failure("run_terminated", clip(f"the run was terminated{by}" + (f": {end.reason}" if end.reason else "")))


def from_beginning(records: list[Recorded]) -> list[Recorded]:
    """A whole history as it is delivered to the code: with its clock set to when the run began."""
    if len(records) > 1 and type(records[1].event) is RunBegan:
        return [Recorded(records[0].seq, records[1].at_us, records[0].event), *records[1:]]
    return records


class TasksScheduled(_Event, frozen=True, gc=False, tag=10):
    first: int
    name: str
    queue: str
    inputs: list[bytes]
    options: TaskOptions
    nodes: list[str] = []
    """Nodes of a declarative flow: one for each task, or the one node that they are executions of (then `index` is set)."""
    index: int = -1
    """Place of the first one among the executions of its node."""


def label(event: TasksScheduled, seq: int) -> str:
    """The node of a flow that a task belongs to, with its place in a spread; empty for a task of code."""
    if event.index >= 0:
        return f"{event.nodes[0]}[{event.index + seq - event.first}]"
    return event.nodes[seq - event.first] if event.nodes else ""


class TasksSucceeded(_Event, frozen=True, gc=False, tag=11):
    seqs: list[int]
    results: list[bytes]


class TaskFailed(_Event, frozen=True, gc=False, tag=12):
    seq: int
    failure: Failure
    attempts: int


class TasksCancelled(_Event, frozen=True, gc=False, tag=13):
    seqs: list[int]


class TasksSkipped(_Event, frozen=True, gc=False, tag=14):
    """Nodes of a declarative flow that will not run. They take sequence numbers as if they had been scheduled."""

    first: int
    nodes: list[str]
    reason: str = ""


class TimerStarted(_Event, frozen=True, gc=False, tag=20):
    seq: int
    fire_at_us: int


class TimerFired(_Event, frozen=True, gc=False, tag=21):
    seq: int


class TimerCancelled(_Event, frozen=True, gc=False, tag=22):
    seq: int


class ChildStarted(_Event, frozen=True, gc=False, tag=30):
    seq: int
    run_id: bytes
    workflow: str
    input: bytes
    key: str = ""
    parent_close: str = "cancel"
    """What becomes of the child when its parent ends first: one of PARENT_CLOSE."""
    detached: bool = False
    """The parent does not wait for its end and is not notified of it."""


class ChildSucceeded(_Event, frozen=True, gc=False, tag=31):
    seq: int
    result: bytes


class ChildFailed(_Event, frozen=True, gc=False, tag=32):
    seq: int
    failure: Failure


class ChildCancelled(_Event, frozen=True, gc=False, tag=33):
    seq: int
    reason: str = ""


class ChildCancelRequested(_Event, frozen=True, gc=False, tag=34):
    seq: int
    awaited: bool = False
    """The code that waits for the child continues when it has ended. False: at once."""


class SignalReceived(_Event, frozen=True, gc=False, tag=40):
    name: str
    value: bytes
    starts: bool = False
    """Its sender would have started this run: if its code does not read the signal, the next run under the key gets it."""


class PromiseCreated(_Event, frozen=True, gc=False, tag=41):
    seq: int
    name: str
    spec: bytes = b""
    """JSON of the approval (core/approvals.py) or of the wait for a named event (core/named_events.py)."""
    kind: PromiseKind = PromiseKind.PLAIN


class PromiseResolved(_Event, frozen=True, gc=False, tag=42):
    name: str
    value: bytes
    authorized: bool = True
    """False: the caller may not answer for others. A restricted approval (assignees or a quorum) that is created later ignores it."""
    question: bytes = b""
    """The question that it answers (core/questions.py); empty: the value was given to the name."""
    event_id: int = 0
    """The named event that it is; 0: it is none."""


class UpdateReceived(_Event, frozen=True, gc=False, tag=43):
    """A caller asks the run to change something, and waits for the answer."""

    id: str
    name: str
    value: bytes


class UpdateAnswered(_Event, frozen=True, gc=False, tag=44):
    """`value` when it was done, `failure` when it was refused or went wrong."""

    id: str
    value: bytes
    failure: Failure | None = None


class OperationRecorded(_Event, frozen=True, gc=False, tag=50):
    """A side effect's outcome: `value` on success, `failure` when it raised."""

    seq: int
    name: str
    value: bytes
    failure: Failure | None = None


class StateSet(_Event, frozen=True, gc=False, tag=51):
    name: str
    value: bytes


class StateCleared(_Event, frozen=True, gc=False, tag=52):
    name: str


class PatchRecorded(_Event, frozen=True, gc=False, tag=53):
    name: str


class AttributesSet(_Event, frozen=True, gc=False, tag=54):
    change: bytes
    """A flat JSON object; an attribute that is null in it is deleted."""


Event = (
    RunStarted
    | CancelRequested
    | RunSucceeded
    | RunFailed
    | RunCancelled
    | RunTerminated
    | RunContinued
    | RunRetried
    | RunBegan
    | RunForked
    | NodeOverridden
    | VersionChanged
    | EndWithdrawn
    | TasksScheduled
    | TasksSucceeded
    | TaskFailed
    | TasksCancelled
    | TasksSkipped
    | TimerStarted
    | TimerFired
    | TimerCancelled
    | ChildStarted
    | ChildSucceeded
    | ChildFailed
    | ChildCancelled
    | ChildCancelRequested
    | SignalReceived
    | PromiseCreated
    | PromiseResolved
    | UpdateReceived
    | UpdateAnswered
    | OperationRecorded
    | StateSet
    | StateCleared
    | PatchRecorded
    | AttributesSet
)

TERMINAL = (RunSucceeded, RunFailed, RunCancelled, RunTerminated, RunContinued)
FACTS = (
    RunStarted,
    RunBegan,
    CancelRequested,
    TasksSucceeded,
    TaskFailed,
    TimerFired,
    ChildSucceeded,
    ChildFailed,
    ChildCancelled,
    SignalReceived,
    PromiseResolved,
    UpdateReceived,
    OperationRecorded,
)
"""Events that workflow code resumes on."""
EVENT_TYPES: tuple[type[_Event], ...] = get_args(Event)


class Recorded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event with its place in the history: number and database time of its commit."""

    seq: int
    at_us: int
    event: Event
