"""Runs: lists, one run and everything in it, and what an operator does to one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Response

from perdure.core import ids
from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.core.events import Recorded
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.limits import NAME_CHARS_MAX, SUCCESSORS_MAX
from perdure.core.messages import CancelAsked
from perdure.core.run_retry import check_retry, effective
from perdure.core.undo import stack_of
from perdure.core.work import Outcome
from perdure.engine.api.reads import LogPosition, RunFilter
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Caller, GuardedRoute, Operator, Reader
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses
from perdure.server.rest.run_lookup import RunName, detail_of, resolve

WAIT_S_MAX: Final = 60
"""Seconds a request for a result may wait."""
HISTORY_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of encoded history after which a page ends."""
UNDO_EVENTS_MAX: Final = 1_000
"""Events up to which the undo stack of a run, and whether it can be retried, are shown with it."""
SEQ_MAX: Final = 2**31 - 1
TASKS_OF_ONE_NAME_MAX: Final = 1_000
"""Tasks of one name whose lines are shown together."""

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)

TaskName = Annotated[
    str, Path(min_length=1, max_length=NAME_CHARS_MAX, description="The task's number, or its name; -1 is the workflow's own code.")
]  # fmt: skip


@router.get("", responses=responses(401, 403, 422))
async def list_runs(
    caller: Reader,
    status: Annotated[list[m.RunStatusWord], Query(max_length=5, description="Any of these.")] = [],  # noqa: B006
    workflow: Annotated[str, Query(max_length=NAME_CHARS_MAX)] = "",
    since: Annotated[str | None, Query(max_length=50, description="Created at this time or later; a time, or how long ago.", examples=["24h"])] = None,
    until: Annotated[str | None, Query(max_length=50, description="Created before this time.", examples=["2026-10-21T14:00:00Z"])] = None,
    attr: Annotated[list[Annotated[str, Query(max_length=m.ATTRIBUTE_NAME_CHARS_MAX + m.ATTRIBUTE_VALUE_CHARS_MAX)]],
                    Query(max_length=8, description="`name:value`; all of them must fit.", examples=[["env:prod"]])] = [],  # noqa: B006
    q: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Part of the key, the workflow's name or the error, or the beginning of the id.")] = "",
    waiting_on: Annotated[m.WaitWord | None, Query(description="Active runs that wait for this. Goes with `workflow`, `since` and `until` only.")] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.RunSummary]:  # fmt: skip
    """Runs, newest first."""
    if waiting_on is not None and (status or attr or q):
        raise InvalidInput("waiting_on goes with workflow, since and until only: drop status, attr and q")
    now_us = caller.server.engine.clock.now_us()
    wanted = RunFilter(
        statuses=frozenset(int(RunStatus[w.upper()]) for w in status),
        workflow=workflow,
        since_us=views.read_moment(since, "since", now_us),
        until_us=views.read_moment(until, "until", now_us),
        attributes=views.read_attributes(attr),
        text=q,
        waiting_on=waiting_on or "",
    )
    page = await caller.server.reads.runs(caller.ns, wanted, views.read_id_cursor(cursor), limit)
    items = [views.summary(item, caller.server.public_url) for item in page.items]
    return m.Page[m.RunSummary](items=items, next=None if page.next is None else views.cursor_of(page.next))


@router.get("/{id}", responses=responses(401, 403, 404, 409))
async def get_run(caller: Reader, id: RunName) -> m.Run:
    """A run in full."""
    run_id = await resolve(caller, id)
    run = await shown(caller, run_id)
    history = await _short_history(caller, run_id, run.events)
    if history is not None:
        run.undo = [views.undoable(u) for u in stack_of(effective(history))]
        run.retry_refused = _retry_refused(history) if run.status == "failed" else None
    return run


async def _short_history(caller: Caller, run_id: bytes, events: int) -> list[Recorded] | None:
    """What follows from the whole history is shown where that is short; a long one is too much work for a look at a run."""
    if events > UNDO_EVENTS_MAX:
        return None
    history = await caller.server.reads.history(caller.ns, run_id, 0, UNDO_EVENTS_MAX, HISTORY_PAGE_BYTES)
    return history if len(history) >= events else None


def _retry_refused(history: list[Recorded]) -> str | None:
    try:
        check_retry(history)
    except Conflict as refusal:
        return str(refusal)
    return None


async def shown(caller: Caller, run_id: bytes) -> m.Run:
    return views.run(await detail_of(caller, run_id), caller.server.public_url)


# -- results -------------------------------------------------------------------------------------------------------


@router.get("/{id}/result", responses=responses(401, 403, 404, 409, s202={"model": m.RunResult, "description": "It has not ended yet."}))  # fmt: skip
async def get_result(
    caller: Reader,
    id: RunName,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the end.")] = 0,
) -> m.RunResult:
    """How a run ended. A run that continued as new is followed."""
    run_id = await resolve(caller, id)
    result = await _ended(caller, run_id)
    if result is None and wait:
        result = await _awaited(caller, run_id, wait)
    if result is None:
        response.status_code = 202
        return m.RunResult(status=views.word((await detail_of(caller, run_id)).item.status))
    if result.status in ("pending", "running"):  # stuck
        response.status_code = 202
    return result


async def _ended(caller: Caller, run_id: bytes) -> m.RunResult | None:
    for _ in range(SUCCESSORS_MAX):
        found = await detail_of(caller, run_id)
        if found.item.finished_us is None:
            return None
        if found.item.successor is None:
            run = views.run(found, caller.server.public_url)
            return m.RunResult(status=run.status, result=run.result, error=run.error)
        run_id = found.item.successor
    return None


async def _awaited(caller: Caller, run_id: bytes, wait_s: float) -> m.RunResult | None:
    try:
        async with asyncio.timeout(wait_s):
            return _result(await caller.use.outcome(run_id, known=run_id in caller.server.engine.loop.runs))
    except TimeoutError:
        return None


def _result(outcome: Outcome) -> m.RunResult:
    return m.RunResult(
        status=views.word(outcome.status),
        result=views.plain(outcome.value),
        error=views.failure(outcome.failure) if outcome.failure is not None else None,
    )


# -- acts ----------------------------------------------------------------------------------------------------------


@router.post("/{id}/cancel", status_code=202, responses=responses(401, 403, 404, 409, 422))
async def cancel_run(caller: Operator, id: RunName, body: m.CancelRun | None = None) -> m.Run:
    """Ask a run to stop. It unwinds like a cancelled coroutine and ends `cancelled`."""
    run_id = await resolve(caller, id)
    await caller.use.post(run_id, CancelAsked(body.reason if body else ""))
    await audit(caller, "run.cancel", run_id)
    return await shown(caller, run_id)


@router.post("/{id}/retry", status_code=202, responses=responses(401, 403, 404, 409))
async def retry_run(caller: Operator, id: RunName) -> m.Run:
    """Open a failed run again: what succeeded stays, what failed is tried anew."""
    run_id = await resolve(caller, id)
    await caller.use.retry(run_id, caller.principal.subject)
    await audit(caller, "run.retry", run_id)
    return await shown(caller, run_id)


@router.post("/{id}/resume", status_code=202, responses=responses(401, 403, 404, 409))
async def resume_run(caller: Operator, id: RunName) -> m.Run:
    """Let a stuck run try again, after its code was repaired."""
    run_id = await resolve(caller, id)
    await caller.use.resume(run_id)
    await audit(caller, "run.resume", run_id)
    return await shown(caller, run_id)


async def audit(caller: Caller, action: str, run_id: bytes, **detail: str | int) -> None:
    await caller.server.audit(caller.principal, action, ids.text(run_id), dict(detail), ns=caller.ns)


# -- what is in a run ----------------------------------------------------------------------------------------------


@router.get("/{id}/tasks", responses=responses(401, 403, 404, 409, 422))
async def list_tasks(
    caller: Reader,
    id: RunName,
    status: Annotated[list[m.TaskStatusWord], Query(max_length=7, description="Any of these.")] = [],  # noqa: B006
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.Task]:
    """A run's tasks, in the order in which its code asked for them."""
    run_id = await resolve(caller, id)
    statuses = frozenset(int(TaskStatus[w.upper()]) for w in status)
    after = views.read_cursor(cursor, int)
    page = await caller.server.reads.tasks(caller.ns, run_id, statuses, _bounded(after, -1), limit)
    if page is None:
        raise NotFound(f"no run {ids.text(run_id)} in this namespace")
    following = None if page.next is None else views.cursor_of(page.next)
    return m.Page[m.Task](items=[views.task(t) for t in page.items], next=following)


def _bounded(seq: int | None, default: int) -> int:
    return default if seq is None else min(max(seq, -1), SEQ_MAX - 1_000)


@router.get("/{id}/tasks/{task}/logs", responses=responses(401, 403, 404, 409, 422))
async def list_task_logs(
    caller: Reader,
    id: RunName,
    task: TaskName,
    attempt: Annotated[int | None, Query(ge=1, le=SEQ_MAX, description="Of this attempt only.")] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.LogEntry]:
    """What a task printed and logged, in the order in which it arrived."""
    run_id = await resolve(caller, id)
    seqs = await _numbers(caller, run_id, task)
    after = views.read_cursor(cursor, LogPosition)
    page = await caller.server.reads.task_logs(caller.ns, run_id, seqs, attempt, after, limit)
    return m.Page[m.LogEntry](
        items=[views.log_entry(i) for i in page.items], next=None if page.next is None else views.cursor_of(page.next)
    )


async def _numbers(caller: Caller, run_id: bytes, task: str) -> list[int]:
    if task == "-1" or (task.isascii() and task.isdigit() and len(task) < 10):
        return [int(task)]
    found = await caller.server.reads.tasks_named(caller.ns, run_id, task, TASKS_OF_ONE_NAME_MAX)
    if not found:
        raise NotFound(f"run {ids.text(run_id)} has no task {task!r}; give its name or its number")
    return found


@router.get("/{id}/logs", responses=responses(401, 403, 404, 409, 422))
async def list_logs(
    caller: Reader, id: RunName, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.LogEntry]:
    """What everything in a run printed and logged. Lines of one page are in the order of their times."""
    run_id = await resolve(caller, id)
    page = await caller.server.reads.logs(caller.ns, run_id, views.read_cursor(cursor, LogPosition), limit)
    items = sorted(page.items, key=lambda i: i.line.at_us)
    return m.Page[m.LogEntry](
        items=[views.log_entry(i) for i in items], next=None if page.next is None else views.cursor_of(page.next)
    )


@router.get("/{id}/history", responses=responses(401, 403, 404, 409, 422))
async def list_history(
    caller: Reader,
    id: RunName,
    after: Annotated[int, Query(ge=0, le=SEQ_MAX, description="Events above this number.")] = 0,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.HistoryEvent]:
    """What happened to a run, oldest first."""
    run_id = await resolve(caller, id)
    above = max(after, _bounded(views.read_cursor(cursor, int), 0))
    records = await caller.server.reads.history(caller.ns, run_id, above, limit + 1, HISTORY_PAGE_BYTES)
    more = len(records) > limit or (bool(records) and await _has_event(caller, run_id, records[-1].seq))
    page = records[:limit]
    return m.Page[m.HistoryEvent](
        items=[views.history_event(r) for r in page], next=views.cursor_of(page[-1].seq) if page and more else None
    )


async def _has_event(caller: Caller, run_id: bytes, after: int) -> bool:
    return bool(await caller.server.reads.history(caller.ns, run_id, after, 1, 1))


@router.get("/{id}/state/{name}", responses=responses(401, 403, 404, 409, 422))
async def get_state(
    caller: Reader, id: RunName, name: Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)]
) -> m.StateValue:
    """The latest value of a State of a run."""
    run_id = await resolve(caller, id)
    value = await caller.use.read_state(run_id, name)
    if value is None:
        raise NotFound(f"run {ids.text(run_id)} has set no state {name!r}")
    return m.StateValue(name=name, value=views.plain(value))
