"""The backend for Django's tasks.

    TASKS = {"default": {"BACKEND": "perdure.frameworks.django.tasks.PerdureBackend", "QUEUES": ["default", "mail"]}}

`OPTIONS` may have `attempts`: how often a task that raises is executed in all, 1 unless given. A task whose worker died is executed again in any
case: at least once, as on every durable queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

from perdure.core.api import attempts, runs
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.attempts import AttemptItem, ListAttempts
from perdure.core.api.runs import AwaitRun, GetRun, ListHistory, RunItem
from perdure.core.errors import Failure, NotFound
from perdure.core.events import RunStarted
from perdure.core.lifecycle import RUN_TERMINAL, RunStatus
from perdure.core.limits import ATTEMPTS_MAX
from perdure.core.work import Outcome
from perdure.frameworks.django.clients import aclient, client
from perdure.frameworks.django.configuration import configuration
from perdure.frameworks.django.starts import start
from perdure.frameworks.django.task_runs import (
    WORKFLOW,
    DjangoCall,
    backend_base,
    django_task,
    tasks_api,
    tasks_base,
    tasks_exceptions,
    tasks_signals,
)
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.payloads import decoded
from perdure.sdk.payloads import Converter

ATTEMPTS_SHOWN: Final = 100
"""Attempts of a task that its result lists; the first ones."""
REQUESTED: Final = "select perdure.requested_start(%s::text::uuid)"
_ANYTHING: Final = Converter.of(Any)
_STATUS: Any = tasks_api.TaskResultStatus


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a task that was enqueued."""

    call: DjangoCall
    enqueued_at: datetime
    item: RunItem | None = None
    """None: the transaction has asked for the run, and no engine has started it yet."""
    attempts: list[AttemptItem] = []
    outcome: Outcome | None = None
    value: Any = None
    failure: Failure | None = None
    """Why there is no run, or how it ended."""


class PerdureBackend(backend_base.BaseTaskBackend):
    """Tasks as runs of the workflow `django_task`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = ", ".join(sorted(set(self.options) - {"attempts"}))
        if unknown:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: OPTIONS has {unknown}; PerdureBackend knows only attempts")
        self._attempts = self.options.get("attempts", 1)
        if not isinstance(self._attempts, int) or not 1 <= self._attempts <= ATTEMPTS_MAX:
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: attempts is {self._attempts!r}; give a whole number from 1 to {ATTEMPTS_MAX}"
            )

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """The result's id is the reference of the run. `PERDURE["START"]` says when the run comes."""
        self.validate_task(task)
        call = DjangoCall(
            function=task.module_path,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            queue=task.queue_name,
            priority=task.priority,
            run_after=_aware(task.run_after),
            attempts=self._attempts,
        )
        wanted = django_task.options(attributes={"task": task.module_path})
        if configuration().start_mode != "transaction":
            key = uuid4().hex
            call = msgspec.structs.replace(call, id=KEY_PREFIX + key)
            wanted = wanted.options(key=key)
        id = start(wanted, call)
        result = self._result(call.id or id, TaskState(call=call, enqueued_at=timezone.now()), task)
        tasks_signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        state = _found(result_id) or _requested(result_id)
        if state is None:  # an engine may have made a run of the request in between
            state = _found(result_id)
        return self._result(result_id, state)

    async def aget_result(self, result_id: str) -> Any:
        try:
            return self._result(result_id, await _state((await aclient())._backend, result_id))
        except NotFound:
            return await super().aget_result(result_id)

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """Whether PERDURE is right is checked by the app, without which nothing runs the tasks."""
        from django.apps import apps  # noqa: PLC0415 - not there yet when Django loads the backend

        if apps.is_installed("perdure.frameworks.django"):
            return []
        return [checks.Error('add "perdure.frameworks.django" to INSTALLED_APPS', id="perdure.E002")]

    def _result(self, id: str, state: TaskState | None, task: Any = None) -> Any:
        if state is None or state.call.backend != self.alias:
            raise tasks_exceptions.TaskResultDoesNotExist(id)
        tried, item = state.attempts, state.item
        begun = [_time(one.started_us) for one in tried if one.started_us is not None]
        result = tasks_base.TaskResult(
            task=task if task is not None else state.call.task(),
            id=id,
            status=_status(state),
            enqueued_at=state.enqueued_at,
            started_at=begun[0] if begun else None,
            last_attempted_at=begun[-1] if begun else None,
            finished_at=_time(item.finished_us) if item is not None and item.finished_us is not None else None,
            args=state.call.args,
            kwargs=state.call.kwargs,
            backend=self.alias,
            errors=_errors(state),
            worker_ids=[one.worker or "" for one in tried],
        )
        object.__setattr__(result, "_return_value", state.value)
        return result


async def _state(backend: Backend, id: str) -> TaskState | None:
    """None: the run is not one of a task. Raises NotFound."""
    if not _is_reference(id):
        return None
    detail = await backend.call(runs.GET, GetRun(id))
    if detail.item.workflow != WORKFLOW:
        return None
    first = (await backend.call(runs.HISTORY, ListHistory(id, 0, 1))).items[0].event
    assert isinstance(first, RunStarted)
    (call,), _ = await decoded(backend, django_task.signature.decode_call, first.input)
    tried = (await backend.call(attempts.LIST, ListAttempts(id, limit=ATTEMPTS_SHOWN))).items
    outcome = None
    if detail.item.status in RUN_TERMINAL:
        outcome = (await backend.call(runs.RESULT, AwaitRun(id, 0.0))).outcome
    succeeded = outcome is not None and outcome.status == RunStatus.SUCCESS
    return TaskState(
        call=call,
        enqueued_at=_time(detail.item.created_us),
        item=detail.item,
        attempts=tried,
        outcome=outcome,
        value=await decoded(backend, _ANYTHING.decode, outcome.value) if succeeded and outcome is not None else None,
        failure=outcome.failure if outcome is not None else None,
    )


def _found(id: str) -> TaskState | None:
    opened = client()
    try:
        return opened._loop.call(_state(opened._client._backend, id))
    except NotFound:
        return None


def _requested(id: str) -> TaskState | None:
    """A start that this transaction has asked for, or that no engine has carried out yet."""
    given = configuration()
    if given.start_mode != "transaction" or not _is_reference(id) or id.startswith(KEY_PREFIX):
        return None
    with connections[given.commit_database].cursor() as cursor:
        cursor.execute(REQUESTED, (id,))
        (found,) = cursor.fetchone()
    if found is None:
        return None
    request = msgspec.json.decode(found) if isinstance(found, str) else found
    if request["workflow"] != WORKFLOW:
        return None
    (call,), _ = django_task.signature.decode_call(request["input"].encode())
    failed = request.get("error")
    return TaskState(
        call=call,
        enqueued_at=datetime.fromisoformat(request["at"]),
        failure=Failure("not_started", failed, "PerdureError") if failed else None,
    )


def _is_reference(id: str) -> bool:
    """Whether it is the id of a result: a whole id of a run, not its beginning, or `key:` and a key."""
    if id.startswith(KEY_PREFIX):
        return True
    try:
        UUID(id)
    except ValueError:
        return False
    return True


def _status(state: TaskState) -> Any:
    if state.item is None:
        return _STATUS.FAILED if state.failure is not None else _STATUS.READY
    if state.item.status in RUN_TERMINAL:
        return _STATUS.SUCCESSFUL if state.item.status == RunStatus.SUCCESS else _STATUS.FAILED
    return _STATUS.RUNNING if any(one.outcome is None for one in state.attempts) else _STATUS.READY


def _errors(state: TaskState) -> list[Any]:
    """One for each attempt that failed; of a task that never began the one of its run."""
    found = [one.failure for one in state.attempts if one.failure is not None]
    if not found and state.failure is not None:
        found = [state.failure]
    return [
        tasks_base.TaskError(exception_class_path=class_path(one), traceback=one.traceback or one.message)
        for one in found
    ]


def class_path(failure: Failure) -> str:
    """The full name of the exception's class. A failure keeps the short one; the last line of its traceback has the module."""
    short = failure.type or "PerdureError"
    named = re.findall(rf"^((?:\w+\.)*{re.escape(short)})(?::|$)", failure.traceback, re.MULTILINE)
    if named and "." in named[-1]:
        return str(named[-1])
    return f"builtins.{short}" if named else "perdure.errors.PerdureError"


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1e6, UTC)


def _aware(at: datetime | None) -> datetime | None:
    """Django allows times without a zone where USE_TZ is off: they are of the zone of the settings."""
    return timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at
