"""Acts on runs: start, read, cancel, terminate, pause, resume, retry, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from perdure.core import events as ev
from perdure.core.api import runs as acts
from perdure.core.api.runs import (
    AwaitRun,
    CancelRun,
    ChangeRun,
    CountRuns,
    GetRun,
    HistoryPage,
    ListChildren,
    ListHistory,
    ListLogs,
    ListRuns,
    ListTasks,
    LogPage,
    PauseRun,
    RunCount,
    RunDetail,
    RunFilter,
    RunPage,
    RunResult,
    StartedRun,
    TaskPage,
    TerminateRun,
)
from perdure.core.api.texts import check_attributes
from perdure.core.errors import Conflict, InvalidInput, NotFound, Unavailable
from perdure.core.events import Recorded
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.ids import ended_run, no_run, text
from perdure.core.lifecycle import RunStatus
from perdure.core.messages import CancelMessage, PauseMessage, TerminateMessage
from perdure.core.run_query import Node
from perdure.core.run_query.filters import query_of
from perdure.core.run_retry import check_retry, effective
from perdure.core.undo import stack_of
from perdure.core.work import Outcome, RunView, StartRequest
from perdure.engine.api import starts
from perdure.engine.api.api import NamespaceApi, handles, page_limit
from perdure.engine.api.run_retry import RunRetry
from perdure.engine.api.saved_views import query_text
from perdure.wire.codec import decode_row, encode_message

HISTORY_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of encoded history after which a page ends."""
SHORT_HISTORY_EVENTS: Final = 1_000
"""Events up to which the undo stack of a run, and whether it can be retried, are shown with it."""
CONTROL_POLL_S_MIN: Final = 0.01
CONTROL_POLL_S_MAX: Final = 0.2
"""Between two looks at a run that is about to be paused or terminated."""
TASKS_OF_ONE_NAME_MAX: Final = 1_000
"""Tasks of one name whose lines are shown together."""


@handles(acts.START)
async def start(api: NamespaceApi, r: StartRequest) -> StartedRun:
    started = await starts.start(api, r)
    if started.is_new:
        await api.record("run.start", started.run_id, workflow=r.workflow)
    return started


@handles(acts.RUN)
def run(api: NamespaceApi, r: StartRequest) -> Coroutine[Any, Any, RunResult]:
    """A client whose run outlasts one call asks on with `run.result`."""
    # The audit line of a start is written while the run is under way, so a start that is recorded is answered first.
    if r.key or r.idempotency_key or r.registered_only or r.is_deferred or api.ports.is_audited:
        return _started_and_awaited(api, r)
    return starts.run(api, r)


async def _started_and_awaited(api: NamespaceApi, r: StartRequest) -> RunResult:
    started = await start(api, r)
    return await _awaited(api, started.run_id, acts.RESULT_WAIT_S_MAX)


@handles(acts.RESULT)
async def result(api: NamespaceApi, r: AwaitRun) -> RunResult:
    run_id = await api.run_id(r.run)
    wait_s = min(r.wait_s, acts.RESULT_WAIT_S_MAX)
    try:
        return await _awaited(api, run_id, wait_s)
    except NotFound:  # the first run of a chain may have been removed: its last one has the result
        last = await api.last_of(r.run)
        return RunResult(run_id, (await _awaited(api, last.run_id, wait_s)).outcome)


async def _awaited(api: NamespaceApi, run_id: bytes, wait_s: float) -> RunResult:
    """How the run ended, and the run that it continued as; without an outcome when it has not ended within the time."""
    if wait_s <= 0:
        return RunResult(run_id, await _ended(api, run_id))
    try:
        async with asyncio.timeout(wait_s):
            owned = api.engine.run_in_memory(run_id)
            known = owned is not None and owned.ns == api.ns
            return RunResult(run_id, await api.engine.waiters.wait(api.ns, run_id, known=known))
    except TimeoutError:
        return RunResult(run_id)


async def _ended(api: NamespaceApi, run_id: bytes) -> Outcome | None:
    view = await api.view(run_id)
    while view.finished_us is not None:
        if view.next_run is None:
            return (await api.ports.store.ended(api.ns, [view.run_id])).get(view.run_id)
        view = await api.view(view.next_run)
    return None


@handles(acts.LIST)
async def list_runs(api: NamespaceApi, r: ListRuns) -> RunPage:
    query = await _query(api, r.filter)
    limit = page_limit(r.limit)
    return await api.ports.reads.runs(api.ns, query, r.below, limit, r.filter.waiting_on, with_waits=r.waits)


@handles(acts.COUNT)
async def count_runs(api: NamespaceApi, r: CountRuns) -> RunCount:
    """How many runs a filter matches, among a bounded number of them."""
    return await api.ports.reads.count_runs(api.ns, await _query(api, r.filter), r.filter.waiting_on)


async def _query(api: NamespaceApi, wanted: RunFilter) -> Node:
    for attributes in wanted.attributes:
        check_attributes(attributes)
    text = await query_text(api, wanted.view, wanted.query)
    return query_of(msgspec.structs.replace(wanted, query=text), api.engine.clock.now_us())


@handles(acts.CHILDREN)
async def list_children(api: NamespaceApi, r: ListChildren) -> RunPage:
    run_id = await api.run_id(r.run)
    page = await api.ports.reads.children(api.ns, run_id, r.below, page_limit(r.limit))
    if not page.items:
        await api.view(run_id)  # NotFound for a run that does not exist
    return page


@handles(acts.STATUS)
async def status(api: NamespaceApi, r: GetRun) -> RunView:
    return await api.view(await api.run_id(r.run))


@handles(acts.GET)
async def get(api: NamespaceApi, r: GetRun) -> RunDetail:
    run_id = await api.run_id(r.run)
    found = await detail(api, run_id)
    if found.events > SHORT_HISTORY_EVENTS:
        return found
    history = await api.ports.reads.history(api.ns, run_id, 0, SHORT_HISTORY_EVENTS + 1, HISTORY_PAGE_BYTES)
    if len(history) < found.events:
        return found
    refused = _retry_refused(history) if found.item.status == RunStatus.FAILED else None
    return msgspec.structs.replace(found, undo=stack_of(effective(history)), retry_refused=refused)


async def detail(api: NamespaceApi, run_id: bytes) -> RunDetail:
    found = await api.ports.reads.detail(api.ns, run_id)
    if found is None:
        raise no_run(run_id)
    return found


def _retry_refused(history: list[Recorded]) -> str | None:
    try:
        check_retry(history)
    except Conflict as refusal:
        return str(refusal)
    return None


@handles(acts.TASKS)
async def list_tasks(api: NamespaceApi, r: ListTasks) -> TaskPage:
    run_id = await api.run_id(r.run)
    limit = page_limit(r.limit)
    if r.notable or r.node:
        page = await api.ports.reads.tasks_of_node(api.ns, run_id, r, limit)
    else:
        page = await api.ports.reads.tasks(api.ns, run_id, r.statuses, r.after, limit)
    if page is None:
        raise no_run(run_id)
    return page


@handles(acts.LOGS)
async def list_logs(api: NamespaceApi, r: ListLogs) -> LogPage:
    run_id = await api.run_id(r.run)
    reads, limit = api.ports.reads, page_limit(r.limit)
    if r.task:
        seqs = await numbers(api, run_id, r.task)
        page = await reads.task_logs(api.ns, run_id, seqs, r.attempt, r.after, limit, r.newest)
    else:
        page = await reads.logs(api.ns, run_id, r.after, limit, r.newest)
        page = LogPage(sorted(page.items, key=lambda item: item.line.at_us, reverse=r.newest), page.next)
    if not page.items:
        await api.view(run_id)  # NotFound for a run that does not exist
    return page


async def numbers(api: NamespaceApi, run_id: bytes, task: str) -> list[int]:
    if task == "-1" or (task.isascii() and task.isdigit() and len(task) < 10):
        return [int(task)]
    found = await api.ports.reads.tasks_named(api.ns, run_id, task, TASKS_OF_ONE_NAME_MAX)
    if not found:
        await api.view(run_id)
        raise NotFound(f"run {text(run_id)} has no task {task!r}; give its name or its number")
    return found


@handles(acts.HISTORY)
async def list_history(api: NamespaceApi, r: ListHistory) -> HistoryPage:
    run_id = await api.run_id(r.run)
    limit, reads = page_limit(r.limit), api.ports.reads
    records = await reads.history(api.ns, run_id, r.after, limit + 1, HISTORY_PAGE_BYTES)
    if not records:
        await api.view(run_id)  # NotFound for a run that does not exist
    has_more = len(records) > limit or (
        bool(records) and bool(await reads.history(api.ns, run_id, records[-1].seq, 1, 1))
    )
    return HistoryPage(records[:limit], has_more)


@handles(acts.CANCEL)
async def cancel(api: NamespaceApi, r: CancelRun) -> None:
    """The run unwinds like a cancelled coroutine and ends `cancelled`. One that continued as new is followed."""
    await send_cancel(api, await api.run_id(r.run), r.reason)


async def send_cancel(api: NamespaceApi, run_id: bytes, reason: str, key: str = "") -> None:
    """With a key it has its effect once."""
    await api.engine.inbox.send(api.ns, run_id, CancelMessage(reason), key=key)
    await api.record("run.cancel", run_id)


@handles(acts.TERMINATE)
async def terminate(api: NamespaceApi, r: TerminateRun) -> None:
    """The run ends `cancelled` at once, in any state: none of its code runs, nothing is undone. One that continued as new is
    followed."""
    run_id = await api.run_id(r.run)
    await send_terminate(api, run_id, r.reason)
    if not await _becomes(api, run_id, _has_ended):
        raise Unavailable(f"run {text(run_id)} has not ended yet; the request is recorded, and an engine will end it")


async def send_terminate(api: NamespaceApi, run_id: bytes, reason: str, key: str = "") -> None:
    """With a key it has its effect once. An engine ends the run at once; this does not wait for it."""
    await api.engine.inbox.send(api.ns, run_id, TerminateMessage(reason, api.by), key=key)
    await api.record("run.terminate", run_id)


@handles(acts.PAUSE)
async def pause(api: NamespaceApi, r: PauseRun) -> None:
    """Nothing of the run starts until it is resumed: its code does not go on, its waiting tasks stay where they are. Tasks that run end
    as usual. Timers and deadlines keep their dates."""
    run_id = await api.run_id(r.run)
    body = encode_message(PauseMessage(api.by, r.reason))
    is_paused = await api.follow(run_id, lambda run: api.ports.store.pause(run, api.ns, api.by, r.reason, body))
    api.engine.events.message_sent.publish(run_id)
    if not is_paused and not await _becomes(api, run_id, _is_paused):
        raise Unavailable(
            f"run {text(run_id)} is not paused yet; the request is recorded, and its engine will pause it"
        )
    await api.record("run.pause", run_id)


def _has_ended(view: RunView) -> bool:
    return view.finished_us is not None


def _is_paused(view: RunView) -> bool:
    if view.finished_us is not None:
        raise ended_run(view.run_id)
    return view.paused_by is not None


async def _becomes(api: NamespaceApi, run_id: bytes, wanted: Callable[[RunView], bool]) -> bool:
    """Whether the run, or the one it continued as, comes into a state that was asked for. The engine that owns it may be another one."""
    pause_s = CONTROL_POLL_S_MIN
    try:
        async with asyncio.timeout(min(acts.CONTROL_WAIT_S, api.caller.within_s)):
            while True:
                view = await api.view(run_id)
                if view.next_run is not None:
                    run_id = view.next_run
                    continue
                if wanted(view):
                    return True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, CONTROL_POLL_S_MAX)
    except TimeoutError:
        return False


@handles(acts.DELETE)
async def delete(api: NamespaceApi, r: ChangeRun) -> None:
    """Delete an ended run with its history, tasks, logs and values. Stored payloads that nothing else uses go later."""
    run_id = await api.run_id(r.run)
    match await api.ports.store.delete_run(run_id, api.ns):
        case "unknown":
            raise no_run(run_id)
        case "active":
            raise Conflict(f"run {text(run_id)} is active; cancel or terminate it first")
        case "continued":
            raise Conflict(
                f"run {text(run_id)} continued as new, and the last run of its chain is active; cancel or terminate that one first"
            )
        case "awaited":
            raise Conflict(
                f"the parent of run {text(run_id)} is active, or has failed and may be retried; delete the parent first"
            )
        case _:
            await api.record("run.delete", run_id)


@handles(acts.RETRY)
async def retry(api: NamespaceApi, r: ChangeRun) -> None:
    """What failed runs again, what succeeded keeps its result. See core/run_retry.py."""
    run_id = (await api.last_of(r.run)).run_id
    await RunRetry(api).retry(run_id)
    await api.record("run.retry", run_id)


@handles(acts.RESUME)
async def resume(api: NamespaceApi, r: ChangeRun) -> None:
    """Resume a paused run, or a stuck one. It released its slots when it was halted, so it waits for them like a new run."""
    view = await api.last_of(r.run)
    run_id = view.run_id
    is_halted = view.stuck is not None or view.paused_by is not None
    if not is_halted or not await api.ports.store.resume(run_id, api.ns, await _group_of(api, view)):
        raise Conflict(f"run {text(run_id)} is neither paused nor stuck; there is nothing to resume")
    api.engine.events.message_sent.publish(run_id)
    await api.record("run.resume", run_id)


async def _group_of(api: NamespaceApi, view: RunView) -> FlowControlGroup | None:
    """The flow-control group of a run; None where its workflow has no limits, or its first record cannot be read."""
    await api.engine.flow_control.find(api.ns, [(view.workflow, view.version)])
    rows = await api.ports.store.history_after(view.run_id, api.ns, 0, 1)
    try:
        first = decode_row(rows[0].seq, rows[0].at_us, rows[0].body)[0].event
    except (InvalidInput, msgspec.DecodeError, IndexError):
        return None
    data = first.input if isinstance(first, ev.RunStarted) else b""
    return api.engine.flow_control.of_run((api.ns, view.workflow, view.version), data)
