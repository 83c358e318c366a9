"""What travels between an engine and a worker, in batches, both ways.

An in-process worker gets these objects as they are; a remote one gets them over the wire. Payloads are bytes either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from perdure.core.commands import Command
from perdure.core.deferred_starts import DedupSpec, Later
from perdure.core.errors import Failure
from perdure.core.events import Recorded
from perdure.core.lifecycle import RunStatus
from perdure.core.payload_port import PayloadCarrier
from perdure.core.retry import End, TaskOptions

VERSION_PREFIX: Final = "flow-"
"""How versions of flows begin. An engine decides runs of these by itself."""


def is_flow(version: str) -> bool:
    return version.startswith(VERSION_PREFIX)


def run_kind(version: str) -> str:
    """`run_queue.kind` of a run of this version."""
    return "flow" if is_flow(version) else "code"


class ServedCode(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a Python workflow, as a worker serves it."""

    version: str
    hash: str = ""
    """Of its code; empty where the worker does not say."""
    pinned: bool = False
    """Its runs stay with the version that they began with."""
    build_id: str = ""
    """Of the worker."""
    control: bytes = b""
    """Flow-control options of its runs as JSON; empty: none."""
    parameters: bytes = b""
    """What it takes, as JSON of core/parameters.py; empty: nothing is checked."""
    messages: bytes = b""
    """What it reads, as JSON of core/published_messages.py; empty: nothing is checked."""
    hooks: bytes = b""
    """Status in which a run ends -> workflow of which a run starts then, as JSON; empty: none."""
    subscriptions: bytes = b""
    """Named events that start runs of it, as JSON of core/subscriptions.py; empty: none."""


AttemptToken = tuple[bytes, int, int]
"""(run id, seq, attempt)"""


class Assignment(msgspec.Struct, gc=False):
    """One attempt of a task for a worker. (run_id, seq, attempt, epoch) is its token: a report must bring it back."""

    run_id: bytes
    seq: int
    attempt: int
    epoch: int
    name: str
    input: bytes
    options: TaskOptions
    ns: int = 0
    trace: str = ""
    """W3C traceparent of the run's span."""
    queue: str = ""
    job: str = ""
    """The external name of the attempt, for the executor that runs it; empty where the worker runs it itself."""


class Report(msgspec.Struct, gc=False):
    """How an attempt ended. Times are Unix microseconds by the engine's estimate of the database clock."""

    run_id: bytes
    seq: int
    attempt: int
    end: End
    value: bytes
    failure: Failure | None
    started_us: int
    finished_us: int
    epoch: int = 0
    """Of the assignment; 0 where the worker does not send it. A task of a retried run begins again with attempt 1."""
    cpu_us: int | None = None
    """CPU time of the task's code; None where it is not known."""
    worker: str = ""
    """The name of a remote worker. The server sets it."""


class Beat(msgspec.Struct, gc=False):
    """An attempt is alive. `details` is what the user's code last said about its progress, `blocked` the stack that holds the
    worker's event loop, where one does."""

    run_id: bytes
    seq: int
    attempt: int
    details: bytes = b""
    blocked: str = ""


class LogLine(msgspec.Struct, array_like=True, gc=False):
    at_us: int
    stream: str
    """`stdout`, `stderr` or `log`; `tokens` for the text of a model's response, as JSON strings."""
    level: str
    """`info` for printed lines; the logging level's name, in lower case, for logged ones."""
    text: str


class LogChunk(msgspec.Struct, gc=False):
    """Lines that one attempt wrote. `n` counts the chunks of an attempt from 0. `seq` -1 is the workflow's own code."""

    run_id: bytes
    seq: int
    attempt: int
    n: int
    lines: list[LogLine]
    ns: int = 0


class Activation(msgspec.Struct, gc=False):
    """New events for a run. With `replay` they are its whole history, for a worker that does not hold it."""

    run_id: bytes
    workflow: str
    events: list[Recorded]
    replay: bool
    ns: int = 0
    version: str = ""
    """Of the code that has to be given the events."""


class Decided(msgspec.Struct, gc=False):
    """The commands of the code after an activation, or why it cannot continue."""

    run_id: bytes
    commands: list[Command]
    stuck: Failure | None = None
    operations: int = 0
    """Side effects the worker is executing for this run; each will arrive as a RecordOperation."""
    spontaneous: bool = False
    """It answers no activation: a side effect has ended."""
    waiting: list[str] = []
    """What the code waits for that no record shows: `signal:NAME`, `update:NAME`. At most WAITING_NAMES_MAX."""
    full: list[str] = []
    """Signals of which the code has left SIGNALS_BUFFERED_MAX unread. At most WAITING_NAMES_MAX."""
    partial: bool = False
    """The decision is not finished: this much of it is to happen already. Of flows alone, within an engine."""


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be started."""

    namespace: str = "default"
    workflow: str
    version: str
    input: bytes
    key: str = ""
    on_conflict: str = "fail"
    timeout_us: int = 0
    attributes: bytes = b""
    """A flat JSON object of search attributes; empty for none."""
    trace: str = ""
    """W3C traceparent of the caller."""
    later: Later | None = None
    """Deferred: the run begins later, together with other starts. See deferred_starts.py."""
    dedup: DedupSpec | None = None
    delay_us: int = 0
    """It begins this long after the start, by the database's clock."""
    start_at_us: int = 0
    """It begins at this moment instead."""
    start_within_us: int = 0
    """It fails if it has not begun this long after it could; 0: it waits."""
    idempotency_key: str = ""
    """Of the request: a repetition under it has no further effect, a different request under it is refused."""
    registered_only: bool = False
    """Refuse a workflow or version that is not registered. Code that starts a workflow it defines does not know what is."""
    rerun_of: bytes = b""
    """The run that this one repeats; and, with it, the schedule and the nominal time of that one."""
    schedule: str = ""
    nominal_us: int = 0

    @property
    def is_deferred(self) -> bool:
        """The start is debounced, batched or deduplicated."""
        return self.later is not None or self.dedup is not None


def is_demanded(r: StartRequest) -> bool:
    """Whether the version of a start has to be that of the run. The version that a program knows by its import is only a hint."""
    return bool(r.version) and (r.registered_only or is_flow(r.version))


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended. `status` is a RunStatus."""

    status: int
    value: bytes = b""
    failure: Failure | None = None

    @property
    def is_handover(self) -> bool:
        """It ended by continuing in a successor: a success without a value, which even None has."""
        return self.status == RunStatus.SUCCESS and self.value == b""


class UpdateAnswer(msgspec.Struct, frozen=True):
    """The answer to an update: `value` when it was done, `failure` when it was refused or failed."""

    value: bytes
    failure: Failure | None = None


class QueryCall(msgspec.Struct, frozen=True, kw_only=True):
    """A query for a worker that has the code of a workflow, with what is recorded of the run that it is about."""

    run_id: bytes
    workflow: str
    name: str
    """Of the query."""
    arguments: bytes
    """Of the query, as JSON by name."""
    key: str
    status: str
    input: bytes
    """Of the run."""
    states: dict[str, bytes]


class QueryAnswer(msgspec.Struct, frozen=True):
    """What the function of a query returned, or why it did not: `query_failed` when it raised, any other code when it was not called."""

    value: bytes
    failure: Failure | None = None


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run, for display."""

    run_id: bytes
    workflow: str
    version: str
    key: str | None
    status: int
    created_us: int
    finished_us: int | None
    error: str | None
    stuck: str | None
    wake_us: int | None
    owner: int | None
    epoch: int
    successor: bytes | None
    paused_by: str | None = None
    """The operator who paused it; None: it is not paused."""
    head: bytes | None = None
    """The last run of the chain that this run began."""

    @property
    def next_run(self) -> bytes | None:
        """A later run of its chain, the last one if it is known; None: it is the last."""
        return self.head or self.successor


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The engine as its workers see it: the clock, and the receivers of what they send. All are called on the event loop, but for
    the two that say otherwise."""

    clock_us: Callable[[], int]
    reported: Callable[[list[Report]], None]
    decided: Callable[[list[Decided]], None]
    beats: Callable[[list[Beat]], None]
    logged: Callable[[list[LogChunk]], None]
    deferred: Callable[[list[AttemptToken]], None]
    """Attempts that wait for a job outside of the worker: their slots are free."""
    urgent_beats: Callable[[list[Beat]], None] | None = None
    """Called from a thread while the loop is blocked, so it must not need the loop. None: `beats` is called, which is right for an engine in
    the same process."""
    code_overran: Callable[[bytes, str], None] | None = None
    """Called from a thread when workflow code cannot be stopped: the run, and the stack it is at."""
    acknowledges: bool = False
    """Reports are acknowledged (`Worker.acknowledged`) once they have arrived. Otherwise they arrive with the call."""
    ns: int = 0
    """The engine's own namespace; a worker in its process serves that one."""
    payloads: PayloadCarrier | None = None
    """Stored content that payloads refer to. None: payloads travel as they are, in tests of a worker alone."""
