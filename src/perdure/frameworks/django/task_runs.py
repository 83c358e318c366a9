"""A task of Django as a run: the workflow `django_task`, which waits until its time has come and calls the function as one task.

    enqueue --> run of django_task --(run_after)--> task django.call, in a thread of a worker --> result

The waiting is part of the run, so that a result can be read from the moment of its enqueuing, and the worker's queue holds only what is due.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import msgspec
from django.utils import timezone
from django.utils.module_loading import import_string

from perdure.sdk import wf
from perdure.sdk.definitions import task, workflow
from perdure.sdk.options import Retry
from perdure.sdk.worker.attempts import FinalError, attempt

WORKFLOW: Final = "django_task"
WORKER_NAME: Final = "perdure"
"""Stands for the workers of earlier attempts in the context of a task, which knows only how many there were."""

_PACKAGE: Final = "django.tasks" if find_spec("django.tasks") is not None else "django_tasks"
"""Django 6 has it; for Django 5.2 it is the package django-tasks. Both have the same interface."""
tasks_api: Any = import_module(_PACKAGE)
tasks_base: Any = import_module(f"{_PACKAGE}.base")
tasks_signals: Any = import_module(f"{_PACKAGE}.signals")
tasks_exceptions: Any = import_module(f"{_PACKAGE}.exceptions")
backend_base: Any = import_module(f"{_PACKAGE}.backends.base")


class DjangoCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that was enqueued."""

    function: str
    """Its module and name."""
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    """The name in TASKS."""
    queue: str
    priority: int = 0
    run_after: datetime | None = None
    attempts: int = 1
    id: str = ""
    """Of the result, where it is not the id of the run."""

    def task(self) -> Any:
        """The task as it was enqueued. Raises ImportError where it is not defined."""
        found = import_string(self.function)
        return found.using(
            priority=self.priority, queue_name=self.queue, run_after=self.run_after, backend=self.backend
        )


@workflow(name=WORKFLOW)
async def django_task(call: DjangoCall) -> Any:
    if call.run_after is not None:
        await wf.sleep(call.run_after)
    return await django_call.options(queue=call.queue, priority=call.priority, retry=Retry(call.attempts))(call)


@task(name="django.call")
def django_call(call: DjangoCall) -> Any:
    """In a worker. The signals of Django's tasks are sent here."""
    called, me = call.task(), attempt()
    backend, now = called.get_backend(), timezone.now()
    result = tasks_base.TaskResult(
        task=called,
        id=call.id or me.run_id,
        status=tasks_api.TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=call.args,
        kwargs=call.kwargs,
        backend=call.backend,
        errors=[],
        worker_ids=[WORKER_NAME] * me.number,
    )
    tasks_signals.task_started.send(type(backend), task_result=result)
    context = [tasks_api.TaskContext(task_result=result)] if called.takes_context else []
    try:
        value = called.call(*context, *call.args, **call.kwargs)
    except Exception as error:
        if me.number >= call.attempts or isinstance(error, FinalError):
            _finished(backend, result, tasks_api.TaskResultStatus.FAILED)
        raise
    _finished(backend, result, tasks_api.TaskResultStatus.SUCCESSFUL)
    return value


def _finished(backend: Any, result: Any, status: Any) -> None:
    object.__setattr__(result, "status", status)  # as Django's own backends do: the object is frozen for others
    object.__setattr__(result, "finished_at", datetime.now(UTC))
    tasks_signals.task_finished.send(type(backend), task_result=result)
