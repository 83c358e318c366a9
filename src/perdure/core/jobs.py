"""Jobs: attempts of tasks that an executor runs outside of the worker that watches them.

Law: the name of a job follows from what is recorded before it is started. A worker that takes over an attempt computes the same name, finds
the job that was started under it, and starts none beside it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from perdure.core.calls import RUN

JOB_PREFIX: Final = "perdure-"
JOB_TASK: Final = "perdure.job."
"""How the names of the tasks begin that an executor runs: perdure.job.kubernetes."""
PROCESS: Final = "process"
CONTAINER: Final = "container"
SERVICE: Final = "service"
PULL_POLICIES: Final = ("missing", "never", "always")
"""When the image of a container is pulled; the first one unless given."""
LOCAL_PREFIX: Final = "local-"
"""How the names of other executors begin whose jobs run on the worker's own machine."""


def job_name(task_id: bytes, scheduled_us: int, attempt: int) -> str:
    """The external name of an attempt: a DNS label, unique among attempts. A task of a retried run is scheduled anew and so has other names."""
    digest = blake2b(task_id + scheduled_us.to_bytes(8, "big"), digest_size=12).hexdigest()
    return f"{JOB_PREFIX}{digest}-{attempt}"


def is_host_bound(executor: str) -> bool:
    """Whether only a worker on the same machine can find its jobs again. When that machine is lost, so is the attempt; a job of any
    other executor is taken over by the next worker."""
    return executor in (PROCESS, CONTAINER) or executor.startswith(LOCAL_PREFIX)


def outlives_worker(executor: str) -> bool:
    """Whether a worker elsewhere can go on watching its jobs."""
    return bool(executor) and not is_host_bound(executor)


def executor_of(task: str) -> str:
    """The executor that runs a built-in task; empty: the worker itself."""
    return PROCESS if task == RUN else task.removeprefix(JOB_TASK) if task.startswith(JOB_TASK) else ""


def job_task(executor: str) -> str:
    return JOB_TASK + executor


SERVICE_TASK: Final = job_task(SERVICE)
"""The task that calls an HTTP service. Every worker serves it."""
