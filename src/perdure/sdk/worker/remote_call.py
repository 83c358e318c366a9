"""Runs a task in a process that an executor started elsewhere. It finds the task by its place in the user's code, as processes.py does."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Final

from perdure.core.errors import NotRegistered, SecretMissing
from perdure.core.payload_port import PayloadCarrier
from perdure.core.retry import End
from perdure.core.work import Assignment
from perdure.executors.port import JobFailed, JobPayloads, JobState, JobSucceeded, TaskCode
from perdure.sdk.definitions import Task
from perdure.sdk.payloads.access import LoopAccess, blob_access
from perdure.sdk.worker.attempts import Attempt, Slot, current_slot
from perdure.sdk.worker.reports import error_report

ENTRY: Final = f"{__name__}:run"


def code_of(definition: Task[Any, Any]) -> TaskCode:
    """What another process needs to run a task of this one."""
    fn = definition.fn
    return TaskCode(entry=ENTRY, module=fn.__module__, qualname=fn.__qualname__, options=definition.executor_options)


def run(module: str, qualname: str, a: Assignment, payloads: JobPayloads) -> JobState:
    try:
        definition = _find(module, qualname)
        blob_access.set(payloads.wait(_access(payloads.carrier)))
        args, kwargs = definition.signature.decode_call(a.input)
        current_slot.set(Slot(Attempt(a, _NoHost())))
        value: Any = definition.fn(*args, **kwargs)
        if definition.is_async:
            value = asyncio.run(value)
        return JobSucceeded(definition.signature.encode_result(value))
    except Exception as e:
        report = error_report(a, e, 0, 0)
        assert report.failure is not None
        return JobFailed(report.failure, report.end is End.FINAL_ERROR)


async def _access(carrier: PayloadCarrier) -> LoopAccess:
    """On the event loop of the carrier, where blobs are read."""
    return LoopAccess(carrier)


def _find(module: str, qualname: str) -> Task[Any, Any]:
    found: Any = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    if not isinstance(found, Task):
        raise NotRegistered(f"{module}:{qualname} is not a task there")
    return found


class _NoHost:
    """Heartbeats of such a task are those of its job, and its output is captured by its executor."""

    sink = None

    def beat(self, attempt: Attempt, details: bytes) -> None:
        pass

    def secret(self, attempt: Attempt, name: str) -> str:
        raise SecretMissing(
            f"{attempt.task} runs outside of its worker, where secrets would not be masked: perdure.secret({name!r}) does not work there. "
            "Use a secret of that platform instead"
        )
