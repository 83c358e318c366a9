"""What an executor is: it starts jobs outside of the worker, observes them and cancels them.

Theory. The engine records the dispatch of an attempt before a worker gets it, and the attempt's external name follows from that record
(core/jobs.py). So a worker may crash at any point and the next one, which gets the same attempt under the same name, has only to ask for the
same job again:

    worker A:  start(job) ... crash
    worker B:  start(job) -> the job of this name exists: nothing is started -> observe([job]) -> its end is reported

Laws:

1. `start` is idempotent: it starts the job of this name unless it has been started before, also when it was started by another process, has
   ended since or is being cancelled.
2. A job is `JobFailed` when the user's work failed, and `JobLost` when the infrastructure failed: its machine vanished, it was evicted, it never
   started. A lost job is tried again without using up an attempt of the user's retry policy.
3. `JobLost` is final for the name: what is observed as lost is never running again, so that the next attempt is not a second one beside it.
4. What has ended stays observable until `forget`.

Methods are called on the worker's event loop and must not block it. An exception from `start`, `observe` or `cancel` means that the
executor cannot be reached: the call is repeated later. `JobRefused` from `start` means that the job can never be started.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from perdure.core.api.act import Act
from perdure.core.calls import OFFER
from perdure.core.errors import Failure, InvalidInput
from perdure.core.payload_port import PayloadCarrier
from perdure.core.work import Assignment

Q = TypeVar("Q")
R = TypeVar("R")

OBSERVED_MAX: Final = 500
"""Jobs in one call of `observe`."""
POLL_S_DEFAULT: Final = 2.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task, to be run outside of the worker."""

    name: str
    """The external name: the same for every worker that gets this attempt, and for no other attempt. A DNS label of at most 63 characters."""
    assignment: Assignment

    @property
    def spec(self) -> dict[str, Any]:
        """The call's arguments by name: what the executor is to run. Decoded anew by each use."""
        return spec_of(self.assignment)

    @property
    def attempt(self) -> int:
        return self.assignment.attempt

    @property
    def timeout_s(self) -> float | None:
        """The most that one attempt may take; None: no limit."""
        return self.assignment.options.timeout_us / 1e6 or None


class JobRunning(msgspec.Struct, frozen=True):
    """It waits to begin or has begun."""

    started_us: int = 0
    """When it began, Unix microseconds; 0: not yet, or not known."""
    details: bytes = b""
    """Progress as JSON, for people."""


class JobSucceeded(msgspec.Struct, frozen=True):
    value: bytes = b"null"
    """The result as JSON."""


class JobFailed(msgspec.Struct, frozen=True):
    failure: Failure
    is_final: bool = False
    """Another attempt is pointless."""


class JobLost(msgspec.Struct, frozen=True):
    why: str


JobState = JobRunning | JobSucceeded | JobFailed | JobLost


class JobRefused(InvalidInput):
    """The job can never be started as it is."""


class TaskCode(msgspec.Struct, frozen=True, kw_only=True):
    """Where another process finds a task's function, and what runs it there."""

    entry: str
    """`module:function` that takes `module`, `qualname`, the assignment and a JobPayloads, and gives a JobState."""
    module: str
    qualname: str
    options: Mapping[str, Any]
    """What the task's definition says to its executor, such as num_gpus."""


class JobSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of a job. Keep them in memory: what an executor writes down is the job itself, which has references."""

    spec: dict[str, Any]
    """What to run, with the values in their places."""
    names: dict[str, str]
    """By value."""
    masked: tuple[bytes, ...]
    """What must not appear in output: the values, also as they stand in URLs, JSON and base64. The longest first."""


class JobPayloads(Protocol):
    """The payload store, as a task reaches it in a process that an executor started elsewhere."""

    @property
    def carrier(self) -> PayloadCarrier: ...

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run this on the event loop of the carrier, from another thread."""
        ...


class ExecutorHost(Protocol):
    """What the worker does for its executors. Call it on the event loop."""

    @property
    def payloads(self) -> PayloadCarrier | None:
        """The payload store. None: payloads travel as they are, in tests of a worker alone."""
        ...

    def code(self, task: str) -> TaskCode:
        """Of a task that this worker defines. Raises NotRegistered."""
        ...

    def now_us(self) -> int:
        """The database clock, Unix microseconds, by the worker's estimate."""
        ...

    def changed(self, name: str) -> None:
        """Observe this job now, without waiting for the next poll."""
        ...

    def write(self, name: str, stream: str, text: str) -> None:
        """Output of a job: `stream` is `stdout` or `stderr`."""
        ...

    def warn(self, name: str, text: str) -> None:
        """A line of the job's log that the executor writes itself."""
        ...

    async def secrets(self, job: Job) -> JobSecrets | None:
        """The secrets of a job; None: it has none. Raises SecretMissing, SecretUnavailable."""
        ...

    async def call(self, act: Act[Q, R], request: Q) -> R:
        """Ask the server, with the worker's own credential. Raises the server's error; Unavailable where there is no answer."""
        ...


class NoOptions(msgspec.Struct, frozen=True):
    pass


class Executor:
    """The base class of executors. `start`, `observe` and `cancel` are required."""

    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    """What can be configured: a struct whose fields have defaults."""
    name: ClassVar[str]
    """As `--executor`, `@task(executor=...)` and `executor:` of a flow name it."""
    tasks: ClassVar[tuple[str, ...]] = ()
    """Names of built-in tasks that it runs beside perdure.job.NAME."""
    poll_s: float = POLL_S_DEFAULT
    """How often running jobs are observed. An executor that calls `Host.changed` may poll rarely."""
    holds_slot: bool = False
    """A running job takes a slot of the worker, because it uses the worker's machine. Otherwise a job that waits costs no slot."""
    takes_references: bool = False
    """Input that is in the payload store is given to `start` as references, for the job to load. Otherwise the worker loads it first."""
    secret_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of a job's spec that secrets may stand in: those that it passes on without writing them where others can read them. A job with a
    secret elsewhere is refused. `ExecutorHost.secrets` has the values."""
    keep_s: float = 60.0
    """How long an ended job is kept after its report was acknowledged, for a worker that takes over an attempt whose end was not recorded."""

    host: ExecutorHost

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    async def open(self, host: ExecutorHost) -> None:
        """Before anything else. Connect here, and raise if that is impossible."""
        self.host = host

    async def close(self) -> None:
        """The worker ends. Jobs go on."""

    async def recover(self) -> list[Job]:
        """Jobs on this machine that a worker before this one left, running or ended. Only for executors that are bound to their machine."""
        return []

    async def start(self, job: Job) -> None:
        """Start the job unless it has been started."""
        raise NotImplementedError

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        """The state of each, in their order; at most OBSERVED_MAX."""
        raise NotImplementedError

    async def cancel(self, job: Job) -> None:
        """Stop it, if it runs. It is observed until it has ended."""
        raise NotImplementedError

    def can_move(self, job: Job) -> bool:
        """Whether another worker could watch this job from now on without starting it again. A worker that leaves waits for the others."""
        return True

    async def forget(self, job: Job) -> None:
        """Its end is recorded: remove what is left of it."""


def spec_of(assignment: Assignment) -> dict[str, Any]:
    """The call's arguments by name."""
    try:
        found: Any = msgspec.json.decode(assignment.input)
    except msgspec.DecodeError as e:
        raise JobRefused(f"the input of {assignment.name} is no JSON: {e}") from e
    if not isinstance(found, dict) or "*" in found:
        raise JobRefused(f"{assignment.name} takes its arguments by name")
    return found["**"] if assignment.input.startswith(OFFER) else found
