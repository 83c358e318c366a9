"""From what the engine and the store know to what clients see, and from what clients write to what the store asks. Pure."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
import re
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from perdure.core import events as ev
from perdure.core import ids, wait_reasons
from perdure.core.api import cluster, definitions, runs
from perdure.core.api.timeline import Segment
from perdure.core.calls import encode_call, encode_input, encode_json
from perdure.core.durations import datetime_of, is_iso, to_us, us_of
from perdure.core.errors import Failure, InvalidInput
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.limits import WORKER_WINDOW_S
from perdure.core.payloads import MARK
from perdure.core.subscriptions import Subscription
from perdure.core.undo import UndoableTask
from perdure.core.work import RunView
from perdure.engine.api.starts import IDEMPOTENT_KEY
from perdure.flows.drawing.chart import Chart, as_graph
from perdure.flows.problems import DocumentProblem
from perdure.server.rest import models as m
from perdure.server.rest import references
from perdure.wire.codec import decode_events, event_fields

ALTERNATIVES_MAX: Final = 16
"""Readings of one attribute filter: `n:5` may mean the number or the text."""
NUMBER_CHARS_MAX: Final = 40
_ID_FIELDS: Final = frozenset({"run_id", "parent_id", "continued_from", "known_as", "rerun_of", "lineage"})
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")

T = TypeVar("T")


def moment(us: int) -> datetime:
    return datetime_of(us)


def moment_or_none(us: int | None) -> datetime | None:
    return None if us is None else datetime_of(us)


def rfc3339(us: int) -> str:
    return datetime_of(us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain(data: bytes) -> Any:
    """A payload as JSON. What is none, which no door of ours lets in, is shown as text or base64."""
    if not data:
        return None
    if data.startswith(MARK):
        return references.plain(data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        try:
            return data.decode()
        except UnicodeDecodeError:
            return base64.b64encode(data).decode()


def payload(value: Any) -> bytes:
    """A long one is stored by the API."""
    return encode_json(value)


def call(value: Any, args: list[Any], kwargs: dict[str, Any]) -> bytes:
    """The workflow's input in the form the SDK reads. `value` is an object with the arguments by name, or the one argument."""
    if (args or kwargs) and value is not None:
        raise InvalidInput("give the arguments as `input`, or as `args` and `kwargs`, not both ways")
    if "*" in kwargs:
        raise InvalidInput("no parameter can be called `*`; give arguments by position in `args`")
    return encode_call(args, kwargs) if value is None else encode_input(value)


def fields(event: ev.Event) -> dict[str, Any]:
    return {name: _plain_field(name, getattr(event, name)) for name in event.__struct_fields__}


def _plain_field(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return (ids.text(value) if value else None) if name in _ID_FIELDS else plain(value)
    if isinstance(value, (list, tuple)):
        return [_plain_field(name, v) for v in value]
    if isinstance(value, msgspec.Struct):
        return {f: _plain_field(f, getattr(value, f)) for f in value.__struct_fields__}
    return value


def history_event(record: ev.Recorded, *, exact: bool = False) -> m.HistoryEvent:
    data = event_fields(record.event) if exact else fields(record.event)
    return m.HistoryEvent(seq=record.seq, at=moment(record.at_us), type=type(record.event).__name__, data=data)


def failure(f: Failure) -> m.ErrorInfo:
    return m.ErrorInfo(code=f.code, message=f.message, type=f.type, traceback=f.traceback)


def own_key(key: str | None) -> str | None:
    """The key that a starter gave; not the one that stands for an idempotency key."""
    return None if key is None or key.startswith(IDEMPOTENT_KEY) else key


def summary(item: runs.RunItem, public_url: str) -> m.RunSummary:
    error = None
    if item.error_code is not None or item.error is not None:
        error = m.ErrorInfo(code=item.error_code or "run_failed", message=item.error or "")
    return m.RunSummary(
        id=ids.text(item.run_id),
        workflow=item.workflow,
        version=item.version,
        key=own_key(item.key),
        status=word(item.status),
        created_at=moment(item.created_us),
        finished_at=moment_or_none(item.finished_us),
        attributes=plain(item.attributes) or {},
        error=error,
        stuck=item.stuck,
        paused_at=moment_or_none(item.paused_us),
        waiting=_listed_waits(item),
        attempts=item.attempts,
        epoch=item.epoch,
        parent_id=_text_or_none(item.parent_id),
        successor=_text_or_none(item.successor),
        url=f"{public_url}/runs/{ids.text(item.run_id)}",
    )


def word(status: int) -> m.RunStatusWord:
    return RunStatus(status).word  # type: ignore[return-value]


def task_word(status: int) -> m.TaskStatusWord:
    return TaskStatus(status).word  # type: ignore[return-value]


def _text_or_none(ident: bytes | None) -> str | None:
    return ids.text(ident) if ident else None


def run(d: runs.RunDetail, public_url: str) -> m.Run:
    started = decode_events(d.started)[0] if d.started else None
    last = decode_events(d.last)[-1] if d.last else None
    head = summary(d.item, public_url)
    head.waiting = waiting(d)
    ended = d.item.finished_us is not None
    begun = started if isinstance(started, ev.RunStarted) else None
    if ended and isinstance(last, ev.RunFailed):
        head.error = failure(last.failure)
    return m.Run(
        **head.model_dump(),
        input=plain(begun.input) if begun is not None else None,
        result=plain(last.result) if ended and isinstance(last, ev.RunSucceeded) else None,
        events=d.events,
        tasks=m.TaskCounts(**{TaskStatus(s).word: n for s, n in d.tasks.items()}),
        undo=None if d.undo is None else [undo_step(u) for u in d.undo],
        rerun_of=_text_or_none(begun.rerun_of) if begun is not None else None,
        forked_from=ids.text(begun.lineage[-1]) if begun is not None and begun.lineage else None,
        forked_at=begun.forked_at or None if begun is not None else None,
        retry_refused=d.retry_refused,
        unread=[unread(u) for u in d.unread],
    )


def unread(u: runs.UnreadMessage) -> m.Unread:
    return m.Unread(kind=u.kind, name=u.name or None, sent_at=moment(u.sent_us), set_aside=u.reason or None)


def status(v: RunView, public_url: str) -> m.RunStatusInfo:
    return m.RunStatusInfo(
        id=ids.text(v.run_id),
        key=own_key(v.key),
        workflow=v.workflow,
        version=v.version,
        status=word(v.status),
        created_at=moment(v.created_us),
        finished_at=moment_or_none(v.finished_us),
        stuck=v.stuck,
        successor=_text_or_none(v.successor),
        url=f"{public_url}/runs/{ids.text(v.run_id)}",
    )


def _listed_waits(item: runs.RunItem) -> m.RunWaits | None:
    """In lists that were filtered by what runs wait for."""
    if not item.waits:
        return None
    return m.RunWaits(
        on=item.waits[0].on, reason=wait_reasons.sentence(item.waits), waits=[wait(w) for w in item.waits]
    )


def undo_step(u: UndoableTask) -> m.UndoStep:
    by, error = u.by if u.by >= 0 else None, u.error or None
    return m.UndoStep(task=u.task, name=u.name, undo=u.undo, status=u.status, by=by, error=error)


def waiting(d: runs.RunDetail) -> m.RunWaits | None:
    item, out = d.item, d.outstanding
    if item.finished_us is not None:
        return None
    return m.RunWaits(
        reason=wait_reasons.sentence(d.waits) or _reason(item, out, d.tasks),
        on=d.waits[0].on if d.waits else "task",
        waits=[wait(w) for w in d.waits],
        tasks=sum(d.tasks.get(s, 0) for s in (TaskStatus.PENDING, TaskStatus.DISPATCHED, TaskStatus.RUNNING)),
        children=out.children if out else 0,
        promises=out.promises if out else [],
        timer_at=moment_or_none(out.timer_us if out else item.wake_us),
    )


def wait(w: wait_reasons.WaitReason) -> m.RunWait:
    return m.RunWait(
        on=w.on,
        text=w.text,
        name=w.name or None,
        key=w.key or None,
        until=moment_or_none(w.until_us or None),
        runs=list(w.runs),
        by=list(w.by),
    )


def _reason(item: runs.RunItem, out: runs.Outstanding | None, counts: dict[int, int]) -> str:
    if item.stuck is not None:
        return f"an operator to resume it: {item.stuck}"
    if item.status == RunStatus.PENDING:
        return f"a worker that serves the workflow {item.workflow}"
    parts: list[str] = []
    running = counts.get(TaskStatus.RUNNING, 0) + counts.get(TaskStatus.DISPATCHED, 0)
    if running:
        parts.append(f"{_many(running, 'task')} at work")
    if counts.get(TaskStatus.PENDING, 0):
        parts.append(f"a worker or the next attempt for {_many(counts[TaskStatus.PENDING], 'task')}")
    if out is not None:
        if out.children:
            parts.append(_many(out.children, "child", "children"))
        if out.promises:
            parts.append(f"the {'promise' if len(out.promises) == 1 else 'promises'} {', '.join(out.promises[:3])}")
        if out.timer_us is not None:
            parts.append(f"a timer at {rfc3339(out.timer_us)}")
        if out.cancel_requested:
            parts.append("its own unwinding: it was asked to stop")
    return ", ".join(parts) or ("its code" if item.owned else "a message")


def _many(n: int, one: str, more: str = "") -> str:
    return f"{n:,} {one if n == 1 else more or one + 's'}"


def task(t: runs.TaskItem) -> m.RunTask:
    return m.RunTask(
        id=ids.text(t.id),
        seq=t.seq,
        name=t.name,
        queue=t.queue,
        status=task_word(t.status),
        attempts=t.attempts,
        lost=t.lost,
        scheduled_at=moment_or_none(t.scheduled_us),
        started_at=moment_or_none(t.started_us),
        finished_at=moment_or_none(t.finished_us),
        run_at=moment_or_none(t.run_at_us),
        error=t.error,
        worker=t.worker,
        details=plain(t.details),
        progress=None if t.progress is None else m.RunTaskProgress(**msgspec.structs.asdict(t.progress)),
        blocked=t.blocked,
        node=t.node,
        copied=t.copied,
        segments=[segment(s) for s in t.segments],
    )


def segment(s: Segment) -> m.TaskSegment:
    shown = {"kind": s.kind, "from": moment(s.from_us), "to": moment(s.to_us), "attempt": s.attempt, "worker": s.worker}
    return m.TaskSegment.model_validate(shown)


def log_entry(item: runs.LogItem) -> m.LogEntry:
    line = item.line
    return m.LogEntry(
        at=moment(line.at_us),
        attempt=item.attempt,
        seq=item.seq,
        task=item.task or None,
        node=item.node or None,
        stream=line.stream,
        level=line.level,
        text=line.text,
    )


def workflow(w: definitions.WorkflowItem) -> m.WorkflowSummary:
    return m.WorkflowSummary(
        name=w.name,
        kind=w.kind,
        version=w.current,
        versions=w.versions,
        description=w.description,
        created_at=moment(w.created_us),
        deleted_at=moment_or_none(w.deleted_us),
        runs_active=w.runs_active,
    )


def version(v: definitions.VersionItem) -> m.WorkflowVersion:
    return m.WorkflowVersion(version=v.version, kind=v.kind, registered_at=moment(v.registered_us), current=v.current)


def flow_problem(p: definitions.ProblemItem | DocumentProblem) -> m.FlowProblem:
    return m.FlowProblem.model_validate(msgspec.to_builtins(p))


def flow_changes(c: definitions.ChangeSummary | None) -> m.FlowChanges | None:
    return None if c is None else m.FlowChanges.model_validate(msgspec.to_builtins(c))


def flow_graph(g: definitions.GraphReply, chart: Chart) -> m.FlowGraph:
    return m.FlowGraph.model_validate(
        as_graph(chart, g.statuses, g.counts) | {"name": g.name, "version": g.version, "kind": g.kind}
    )


def workflow_detail(d: definitions.WorkflowDetail) -> m.Workflow:
    shown = workflow(d.item)
    return m.Workflow(
        **shown.model_dump(exclude={"versions"}),
        versions=[version(v) for v in d.versions],
        input_schema=d.input_schema,
        queries=list(d.queries),
        on=[_subscription(s) for s in d.subscriptions],
    )


def _subscription(s: Subscription) -> m.EventSubscription:
    within_s = s.within_us / 1e6 if s.within_us else None
    return m.EventSubscription(event=s.event, match=s.match, key=s.key, dedup=s.dedup, within_s=within_s, input=s.input)


def queue(q: cluster.QueueItem) -> m.QueueDepth:
    return m.QueueDepth.model_validate(msgspec.to_builtins(q))


def worker(w: cluster.WorkerItem) -> m.ConnectedWorker:
    return m.ConnectedWorker(
        id=ids.text(w.id),
        name=w.name,
        host=w.host,
        pid=w.pid,
        sdk=w.sdk,
        queues=w.queues,
        tasks=w.tasks,
        workflows=w.workflows,
        slots=w.slots,
        slots_used=w.slots_used,
        runs_held=w.runs_held,
        draining=w.draining,
        connected_at=moment(w.connected_us),
        seen_at=moment(w.seen_us),
        blocked=w.blocked,
        engine=w.engine,
        ended=w.ended,
        failed=w.failed,
        per_s=round(w.ended / WORKER_WINDOW_S, 3),
        p50_s=_seconds(w.p50_us),
        p95_s=_seconds(w.p95_us),
        p99_s=_seconds(w.p99_us),
    )


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def cursor_of(value: Any) -> str:
    """Opaque on purpose: what is inside may change."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode().rstrip("=")


def next_cursor(value: Any) -> str | None:
    return None if value is None else cursor_of(value)


def read_text_cursor(text: str | None) -> str:
    """The name that the page before ended with."""
    return read_cursor(text, str) or ""


def read_number_cursor(text: str | None) -> int | None:
    found = read_cursor(text, int)
    if found is not None and not 0 <= found < 1 << 63:
        raise no_cursor()
    return found


def read_cursor(text: str | None, kind: type[T]) -> T | None:
    if not text:
        return None
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise no_cursor() from None


def read_id_cursor(text: str | None) -> bytes | None:
    found = read_cursor(text, bytes)
    if found is not None and len(found) != 16:
        raise no_cursor()
    return found


def no_cursor() -> InvalidInput:
    return InvalidInput("this cursor is none that this list hands out; leave it out to begin at the first page")


def read_moment(text: str | None, what: str, now_us: int) -> int | None:
    """An RFC 3339 time, or how long ago: `2026-10-21T14:00:00Z`, `24h`."""
    if not text:
        return None
    try:
        return max(0, now_us - to_us(text))
    except InvalidInput as e:
        if is_iso(text):
            raise InvalidInput(f"{what}: {e}") from None
    try:
        return max(0, us_of(datetime.fromisoformat(text)))
    except (ValueError, OverflowError, InvalidInput):
        raise InvalidInput(
            f"{what}: write a time with its zone, such as 2026-10-21T14:00:00Z, or how long ago, such as 24h"
        ) from None


def read_attributes(pairs: list[str]) -> tuple[bytes, ...]:
    """`key:value` filters as JSON objects. A value that reads as a number or a truth value may be meant as either."""
    choices: list[list[tuple[str, Any]]] = []
    for pair in pairs:
        name, colon, value = pair.partition(":")
        if not colon or not name:
            raise InvalidInput(f"attr={pair!r} is no filter: write attr=name:value")
        choices.append([(name, one) for one in _readings(value)])
    found = [dict(combination) for combination in itertools.islice(itertools.product(*choices), ALTERNATIVES_MAX + 1)]
    if len(found) > ALTERNATIVES_MAX:
        raise InvalidInput("too many attr filters look like numbers; give fewer of them")
    return tuple(encode_json(one) for one in found) if pairs else ()


def _readings(value: str) -> list[Any]:
    if value in ("true", "false"):
        return [value, value == "true"]
    if _NUMBER.fullmatch(value) and len(value) < NUMBER_CHARS_MAX and math.isfinite(number := json.loads(value)):
        return [value, number]
    return [value]


def duration_us(value: float | str | None) -> int:
    return 0 if value is None else to_us(value)
