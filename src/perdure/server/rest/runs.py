"""Runs: lists, one run and everything in it, and what an operator does to one."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import messages, runs
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.messages import ReadState
from perdure.core.api.runs import (
    AwaitRun,
    CancelRun,
    ChangeRun,
    CountRuns,
    GetRun,
    ListChildren,
    ListHistory,
    ListLogs,
    ListRuns,
    ListTasks,
    LogPosition,
    NotablePosition,
    PauseRun,
    RunFilter,
    TerminateRun,
)
from perdure.core.errors import NotFound
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.limits import ATTRIBUTE_NAME_CHARS_MAX, ATTRIBUTE_VALUE_CHARS_MAX, NAME_CHARS_MAX, QUERY_CHARS_MAX
from perdure.core.work import Outcome
from perdure.engine.api.runs import detail
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.payloads import loaded
from perdure.server.rest.problems import responses

WAIT_S_MAX: Final = 60
"""Seconds a request for a result may wait."""
SEQ_MAX: Final = 2**31 - 1

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)

RunName = Annotated[
    str,
    Path(
        description="A run's id, six or more of its first characters, `key:` and the key its starter gave it, or `@last`.",
        min_length=1,
        max_length=NAME_CHARS_MAX + len(KEY_PREFIX),
        examples=["0192a6f0-5c1e-7000-8123-0123456789ab", "0192a6f05c", "key:order-42", "@last"],
    ),
]
TaskName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=NAME_CHARS_MAX,
        description="The task's number, or its name; -1 is the workflow's own code.",
    ),
]


class RunsCounted(BaseModel):
    count: int
    exact: bool = Field(description="False: there are at least so many.")


class RunFilters:
    """Query parameters that say which runs are meant."""

    def __init__(
        self,
        status: Annotated[list[m.RunStatusWord], Query(max_length=5, description="Any of these.")] = [],  # noqa: B006
        workflow: Annotated[str, Query(max_length=NAME_CHARS_MAX)] = "",
        since: Annotated[
            str | None,
            Query(
                max_length=50, description="Created at this time or later; a time, or how long ago.", examples=["24h"]
            ),
        ] = None,
        until: Annotated[
            str | None, Query(max_length=50, description="Created before this time.", examples=["2026-10-21T14:00:00Z"])
        ] = None,
        attr: Annotated[
            list[Annotated[str, Query(max_length=ATTRIBUTE_NAME_CHARS_MAX + ATTRIBUTE_VALUE_CHARS_MAX)]],
            Query(max_length=8, description="`name:value`; all of them must fit.", examples=[["env:prod"]]),
        ] = [],  # noqa: B006
        q: Annotated[
            str,
            Query(
                max_length=NAME_CHARS_MAX,
                description="Part of the key, the workflow's name or the error, or the beginning of the id.",
            ),
        ] = "",
        waiting_on: Annotated[
            m.WaitWord | None,
            Query(description="Active runs that wait for this."),
        ] = None,
        query: Annotated[
            str,
            Query(
                max_length=QUERY_CHARS_MAX,
                description="A query text; it combines with the other filters.",
                examples=["status = failed and attr.total > 100"],
            ),
        ] = "",
        view: Annotated[
            str, Query(max_length=NAME_CHARS_MAX, description="A saved view, whose query must match too.")
        ] = "",
    ) -> None:
        self._status, self._workflow, self._attr, self._text = status, workflow, attr, q
        self._since, self._until, self._waiting_on, self._query, self._view = since, until, waiting_on, query, view

    def of(self, caller: RestCaller) -> RunFilter:
        return RunFilter(
            statuses=frozenset(int(RunStatus[w.upper()]) for w in self._status),
            workflow=self._workflow,
            since_us=views.read_moment(self._since, "since", caller.now_us),
            until_us=views.read_moment(self._until, "until", caller.now_us),
            attributes=views.read_attributes(self._attr),
            text=self._text,
            waiting_on=self._waiting_on or "",
            query=self._query,
            view=self._view,
        )


@router.get("", responses=responses(401, 403, 422))
async def list_runs(
    caller: Annotated[RestCaller, asks(runs.LIST)],
    filters: Annotated[RunFilters, Depends()],
    waits: Annotated[
        bool, Query(description="With what active runs wait for, and the most attempts that a task of each run took.")
    ] = False,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.RunSummary]:
    """Runs, newest first."""
    page = await caller.call(runs.LIST, ListRuns(filters.of(caller), views.read_id_cursor(cursor), limit, waits))
    items = [views.summary(item, caller.api.api.public_url) for item in page.items]
    return m.Page[m.RunSummary](items=items, next=views.next_cursor(page.next))


@router.get("/count", responses=responses(401, 403, 422))
async def count_runs(
    caller: Annotated[RestCaller, asks(runs.COUNT)], filters: Annotated[RunFilters, Depends()]
) -> RunsCounted:
    """How many runs match. A bounded number of runs is looked at."""
    found = await caller.call(runs.COUNT, CountRuns(filters.of(caller)))
    return RunsCounted(count=found.count, exact=found.exact)


@router.get("/{id}", responses=responses(401, 403, 404, 409))
async def get_run(caller: Annotated[RestCaller, asks(runs.GET)], id: RunName) -> m.Run:
    """A run in full."""
    return views.run(await caller.call(runs.GET, GetRun(id)), caller.api.api.public_url)


@router.get("/{id}/children", responses=responses(401, 403, 404, 409, 422))
async def list_children(
    caller: Annotated[RestCaller, asks(runs.CHILDREN)], id: RunName, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.RunSummary]:
    """The runs that a run has started, newest first."""
    page = await caller.call(runs.CHILDREN, ListChildren(id, views.read_id_cursor(cursor), limit))
    items = [views.summary(item, caller.api.api.public_url) for item in page.items]
    return m.Page[m.RunSummary](items=items, next=views.next_cursor(page.next))


@router.get("/{id}/status", responses=responses(401, 403, 404, 409))
async def get_run_status(caller: Annotated[RestCaller, asks(runs.STATUS)], id: RunName) -> m.RunStatusInfo:
    """The status of a run, at the lowest cost: for programs that poll."""
    return views.status(await caller.call(runs.STATUS, GetRun(id)), caller.api.api.public_url)


async def shown(caller: RestCaller, run_id: bytes) -> m.Run:
    """The run after an act on it."""
    return views.run(await detail(caller.api, run_id), caller.api.api.public_url)


@router.get(
    "/{id}/result",
    responses=responses(401, 403, 404, 409, s202={"model": m.RunOutcome, "description": "It has not ended yet."}),
)
async def get_result(
    caller: Annotated[RestCaller, asks(runs.RESULT)],
    id: RunName,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the end.")] = 0,
) -> m.RunOutcome:
    """How a run ended. A run that continued as new is followed."""
    found = await caller.call(runs.RESULT, AwaitRun(id, wait))
    if found.outcome is None:
        response.status_code = 202
        view = await caller.api.view(found.run_id)
        return m.RunOutcome(status=views.word(view.status))
    if found.outcome.status in (RunStatus.PENDING, RunStatus.RUNNING):  # stuck
        response.status_code = 202
    return _result(found.outcome, await loaded(caller, found.outcome.value))


def _result(outcome: Outcome, value: bytes) -> m.RunOutcome:
    return m.RunOutcome(
        status=views.word(outcome.status),
        result=views.plain(value),
        error=views.failure(outcome.failure) if outcome.failure is not None else None,
    )


@router.post("/{id}/cancel", status_code=202, responses=responses(401, 403, 404, 409, 422))
async def cancel_run(
    caller: Annotated[RestCaller, asks(runs.CANCEL)], id: RunName, body: m.CancelRunRequest | None = None
) -> m.Run:
    """Ask a run to stop. It unwinds like a cancelled coroutine and ends `cancelled`."""
    run_id = await caller.api.run_id(id)
    await caller.call(runs.CANCEL, CancelRun(ids.text(run_id), body.reason if body else ""))
    return await shown(caller, run_id)


@router.post("/{id}/terminate", status_code=202, responses=responses(401, 403, 404, 409, 422, 503))
async def terminate_run(
    caller: Annotated[RestCaller, asks(runs.TERMINATE)], id: RunName, body: m.TerminateRunRequest | None = None
) -> m.Run:
    """End a run at once, in any state: none of its code runs and nothing is undone. It ends `cancelled`."""
    run_id = await caller.api.run_id(id)
    await caller.call(runs.TERMINATE, TerminateRun(ids.text(run_id), body.reason if body else ""))
    return await shown(caller, run_id)


@router.post("/{id}/pause", status_code=202, responses=responses(401, 403, 404, 409, 422, 503))
async def pause_run(
    caller: Annotated[RestCaller, asks(runs.PAUSE)], id: RunName, body: m.PauseRunRequest | None = None
) -> m.Run:
    """Start nothing of a run until it is resumed. Running tasks end as usual; timers and deadlines keep their dates."""
    run_id = await caller.api.run_id(id)
    await caller.call(runs.PAUSE, PauseRun(ids.text(run_id), body.reason if body else ""))
    return await shown(caller, run_id)


@router.delete("/{id}", status_code=204, responses=responses(401, 403, 404, 409))
async def delete_run(caller: Annotated[RestCaller, asks(runs.DELETE)], id: RunName) -> None:
    """Delete an ended run with its history, tasks, logs and values."""
    await caller.call(runs.DELETE, ChangeRun(id))


@router.post("/{id}/retry", status_code=202, responses=responses(401, 403, 404, 409))
async def retry_run(caller: Annotated[RestCaller, asks(runs.RETRY)], id: RunName) -> m.Run:
    """Continue a failed run: succeeded tasks keep their results, failed ones run again."""
    run_id = await caller.api.run_id(id)
    await caller.call(runs.RETRY, ChangeRun(ids.text(run_id)))
    return await shown(caller, run_id)


@router.post("/{id}/resume", status_code=202, responses=responses(401, 403, 404, 409))
async def resume_run(caller: Annotated[RestCaller, asks(runs.RESUME)], id: RunName) -> m.Run:
    """Let a paused run go on, or a stuck run try again after its code was repaired."""
    run_id = await caller.api.run_id(id)
    await caller.call(runs.RESUME, ChangeRun(ids.text(run_id)))
    return await shown(caller, run_id)


class TaskFilters:
    """Query parameters that say which tasks of a run are meant, and in which order."""

    def __init__(
        self,
        status: Annotated[list[m.TaskStatusWord], Query(max_length=7, description="Any of these.")] = [],  # noqa: B006
        node: Annotated[
            str,
            Query(
                max_length=NAME_CHARS_MAX, description="Of this node, without its place in a foreach, or of this name."
            ),
        ] = "",
        order: Annotated[
            Literal["seq", "notable"], Query(description="By number, or failed ones first and then the slowest.")
        ] = "seq",
        after: Annotated[
            int, Query(ge=-1, le=SEQ_MAX, description="Tasks above this number, in order of numbers.")
        ] = -1,
    ) -> None:
        self._statuses = frozenset(int(TaskStatus[w.upper()]) for w in status)
        self._node, self._order, self._after = node, order, after

    def of(self, run: str, limit: int, cursor: str | None) -> ListTasks:
        if self._order == "notable":
            below = views.read_cursor(cursor, NotablePosition)
            return ListTasks(run, self._statuses, limit=limit, node=self._node, notable=True, below=below)
        above = max(_bounded(self._after, -1), _bounded(views.read_cursor(cursor, int), -1))
        return ListTasks(run, self._statuses, above, limit, self._node)


@router.get("/{id}/tasks", responses=responses(401, 403, 404, 409, 422))
async def list_tasks(
    caller: Annotated[RestCaller, asks(runs.TASKS)],
    id: RunName,
    filters: Annotated[TaskFilters, Depends()],
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.RunTask]:
    """A run's tasks, in the order in which its code scheduled them, or the notable ones first."""
    page = await caller.call(runs.TASKS, filters.of(id, limit, cursor))
    following = page.next if page.next_notable is None else page.next_notable
    return m.Page[m.RunTask](items=[views.task(t) for t in page.items], next=views.next_cursor(following))


def _bounded(seq: int | None, default: int) -> int:
    return default if seq is None else min(max(seq, -1), SEQ_MAX - 1_000)


LogOrder = Annotated[
    Literal["oldest", "newest"], Query(description="The first lines first, or the last ones: for a view of the end.")
]


@router.get("/{id}/tasks/{task}/logs", responses=responses(401, 403, 404, 409, 422))
async def list_task_logs(
    caller: Annotated[RestCaller, asks(runs.LOGS)],
    id: RunName,
    task: TaskName,
    attempt: Annotated[int | None, Query(ge=1, le=SEQ_MAX, description="Of this attempt only.")] = None,
    order: LogOrder = "oldest",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.LogEntry]:
    """What a task printed and logged, in the order in which it arrived, or the last lines first."""
    after = views.read_cursor(cursor, LogPosition)
    return await _logs(caller, ListLogs(id, task, attempt, after, limit, order == "newest"))


@router.get("/{id}/logs", responses=responses(401, 403, 404, 409, 422))
async def list_logs(
    caller: Annotated[RestCaller, asks(runs.LOGS)],
    id: RunName,
    order: LogOrder = "oldest",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.LogEntry]:
    """What everything in a run printed and logged. Lines of one page are in the order of their times."""
    after = views.read_cursor(cursor, LogPosition)
    return await _logs(caller, ListLogs(id, after=after, limit=limit, newest=order == "newest"))


async def _logs(caller: RestCaller, wanted: ListLogs) -> m.Page[m.LogEntry]:
    page = await caller.call(runs.LOGS, wanted)
    return m.Page[m.LogEntry](items=[views.log_entry(i) for i in page.items], next=views.next_cursor(page.next))


@router.get("/{id}/history", responses=responses(401, 403, 404, 409, 422))
async def list_history(
    caller: Annotated[RestCaller, asks(runs.HISTORY)],
    id: RunName,
    after: Annotated[int, Query(ge=0, le=SEQ_MAX, description="Events above this number.")] = 0,
    exact: Annotated[
        bool,
        Query(
            description='Payloads byte for byte, as `{"text": ...}` or `{"base64": ...}`: for programs that replay the history.'
        ),
    ] = False,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[m.HistoryEvent]:
    """The events of a run, oldest first."""
    above = max(after, _bounded(views.read_cursor(cursor, int), 0))
    page = await caller.call(runs.HISTORY, ListHistory(id, above, limit))
    following = page.items[-1].seq if page.items and page.has_more else None
    return m.Page[m.HistoryEvent](
        items=[views.history_event(r, exact=exact) for r in page.items], next=views.next_cursor(following)
    )


@router.get("/{id}/state/{name}", responses=responses(401, 403, 404, 409, 422))
async def get_state(
    caller: Annotated[RestCaller, asks(messages.STATE)],
    id: RunName,
    name: Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)],
) -> m.StateValue:
    """The latest value of a State of a run."""
    value = (await caller.call(messages.STATE, ReadState(id, name))).value
    if value is None:
        raise NotFound(f"run {id} has not set the state {name!r}")
    return m.StateValue(name=name, value=views.plain(await loaded(caller, value)))
