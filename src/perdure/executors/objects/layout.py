"""The objects of an attempt, as both sides know them.

    RUN/TASK/ATTEMPT/NAME/spec.json       by the executor, once: what to run
                         /launched.json   by the executor: the launcher took it
                         /claim.json      created by the job that begins; the process that creates it runs the work, all others leave
                         /status.json     by the job: running, then success, failed or cancelled
                         /heartbeat.json  by the job, every `heartbeat_s` of the spec
                         /output.json     by the job, before the status success
                         /logs/000001-stdout.txt ...  by the job
                         /cancel.json     by the executor: stop
                         /lost.json       by the executor: the attempt is over; later writes of the job do not count

Laws:

1. Only `claim.json` decides who runs. It is created if absent, by the store. An executor that gives up on a job that never started, or cancels
   it before that, takes the claim itself, so the job can never begin afterwards.
2. `lost.json` is final: it is read before anything that the job writes.
3. A job that cannot write its heartbeat ends its own work before the executor counts it as lost (FENCE).
4. Liveness is judged by change (the store's version of heartbeat.json or status.json differs), never by comparing clocks of machines.

RUN and TASK are ids, ATTEMPT is a number, NAME is the job's external name, which also tells a retried run's attempts from earlier ones.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from perdure.core import ids
from perdure.core.limits import PAYLOAD_POSTGRES_BYTES_MAX
from perdure.executors.port import Job

VERSION: Final = 1
SPEC: Final = "spec.json"
LAUNCHED: Final = "launched.json"
CLAIM: Final = "claim.json"
STATUS: Final = "status.json"
HEARTBEAT: Final = "heartbeat.json"
OUTPUT: Final = "output.json"
CANCEL: Final = "cancel.json"
LOST: Final = "lost.json"
LOGS: Final = "logs"

HEARTBEAT_S: Final = 10.0
"""How often a job writes its heartbeat."""
HEARTBEAT_STALE_S: Final = 60.0
"""A heartbeat that has not changed for so long means that the job is lost."""
PLATFORM_STALE_S: Final = 300.0
"""The same where a platform, such as Kubernetes, says whether a job runs: heartbeats only end work that is cut off from its store."""
FENCE: Final = 0.75
"""A job that could not write its heartbeat for so much of HEARTBEAT_STALE_S stops its work."""
START_S_MAX: Final = 300.0
"""A job that has not begun after so long never starts."""
CANCEL_POLL_S: Final = 2.0
"""How often a job looks whether it is cancelled."""
LOG_OBJECT_S: Final = 2.0
"""How often a job writes what was printed since."""
LOG_OBJECT_BYTES_MAX: Final = 256 * 1024
LOG_OBJECTS_MAX: Final = 2_000
"""Objects of output of one attempt; what is printed after that is not kept."""
OBJECT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a status or an object of a log."""
SPEC_BYTES_MAX: Final = PAYLOAD_POSTGRES_BYTES_MAX + OBJECT_BYTES_MAX
"""Bytes of a spec, which holds the input."""

SPEC_ENV: Final = "TASK_SPEC_PATH"

Outcome = Literal["running", "success", "failed", "cancelled"]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is to do. The fields of the job's identity come first; the rest is what the call said. All keys are always written, so that a worker in
    another language need not know what is left out."""

    version: int
    name: str
    run_id: str
    task_id: str
    task_name: str
    attempt: int
    created_us: int
    """When the executor wrote it, by the database clock."""
    command: list[str] | str | None = None
    """Arguments, or text for the shell."""
    python: str | None = None
    """module:function"""
    env: dict[str, str] = {}
    cwd: str = ""
    input: Any = None
    upstream: dict[str, Any] = {}
    """Results of earlier tasks, merged over the input."""
    exit_codes: dict[str, str] = {}
    """An exit code -> success, retry or fail."""
    workflow_name: str = ""
    parallel_index: int | None = None
    parallel_count: int | None = None
    timeout_s: float | None = None
    heartbeat_s: float = HEARTBEAT_S
    stale_s: float = HEARTBEAT_STALE_S
    """When the executor counts the job as lost, if its heartbeat does not change."""
    trace: str = ""

    @property
    def merged_input(self) -> Any:
        if not self.upstream:
            return self.input
        return {**(self.input if isinstance(self.input, dict) else {}), **self.upstream}


class ReportedStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job says of itself. Workers in other languages may leave out all but `status`."""

    status: Outcome
    error: str = ""
    error_type: str = ""
    is_final: bool = False
    """Another attempt is pointless."""
    exit_code: int | None = None
    at: float = 0.0
    """Unix seconds by the job's clock, for people."""


def path_of(job: Job) -> str:
    """Where the objects of an attempt are."""
    a = job.assignment
    task = ids.text(ids.derive(a.run_id, ids.TASK, a.seq))
    return f"{ids.text(a.run_id)}/{task}/{a.attempt}/{job.name}"


def run_of(job: Job) -> str:
    """The prefix of all attempts of a run."""
    return ids.text(job.assignment.run_id)


def log_path(number: int, stream: str) -> str:
    return f"{LOGS}/{number:06}-{stream}.txt"


def log_stream(path: str) -> str:
    """`stdout` or `stderr`, of the name of an object of output."""
    return "stderr" if path.endswith("-stderr.txt") else "stdout"
