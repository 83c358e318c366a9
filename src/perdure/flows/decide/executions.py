"""Executions of nodes that are in flight: what is outstanding, how each ends, and how it is stopped.

An execution in flight has a handle under its index in the visit: a task's sequence number, or one of the small structs below. An event about
it is matched through the tables of `Executions`, which hold what is in flight and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from perdure.core import events as ev
from perdure.core.approvals import read_answer
from perdure.core.declared import Declared, laid_under
from perdure.core.errors import Failure, clip
from perdure.core.jobs import SERVICE_TASK
from perdure.core.journal import Journal
from perdure.core.limits import EXPR_STEPS_MAX, UNDO_STACK_MAX
from perdure.core.waits import MessageWaits, PromiseWaits
from perdure.flows.decide.agenda import FILL_STEPS, Agenda
from perdure.flows.decide.answers import verdict
from perdure.flows.decide.frames import BodyFrame, Trouble, Visit
from perdure.flows.decide.values import JsonValue
from perdure.flows.model import DEFAULT, ApprovalVerb, MessageVerb, Services, TaskCall

EAGER_ITEMS: Final = 5_000
"""Up to this many executions a free place is filled at once; a larger spread refills an eighth at a time, to keep its history short."""
SHOWN_FAILURES: Final = 3
"""Failures of a spread that its error message quotes."""

Place = tuple[Visit, int]
"""An execution: a visit, and the index in it."""


class MessageWait(msgspec.Struct):
    """An execution that waits for a message, perhaps with a time limit."""

    name: str
    timer: int = -1
    promise: bool = False
    """`name` is that of a promise."""
    signal: str = ""
    """The signal that answers it."""
    spec: bytes = b""
    """Of the wait for a named event, while it has not come."""


class InnerBody(msgspec.Struct):
    """An execution that is a body of its own, perhaps with a time limit."""

    frame: BodyFrame
    timer: int = -1


class ChildRun(msgspec.Struct):
    seq: int


class SleepTimer(msgspec.Struct):
    seq: int


class UndoableExecution(msgspec.Struct, eq=False):
    """An execution that succeeded and can be undone: an entry of the undo stack (core/undo.py)."""

    visit: Visit
    index: int
    given: bytes
    """What it was called with, for its undo."""
    result: bytes


def nothing_declared(task: str) -> Declared | None:
    """Of the options that tasks declare for themselves, none is known."""
    return None


def all_python(service: str) -> bool:
    """Every service is a Python task."""
    return False


def service_input(service: str, data: bytes, fields: Mapping[str, Any]) -> bytes:
    """The arguments of a call over HTTP: those of the service, which are an object, and how it is called."""
    head = msgspec.json.encode({"service": service, **fields})
    return head if data == b"{}" else head[:-1] + b"," + data[1:]


class Executions:
    """What is in flight."""

    def __init__(
        self,
        run_id: bytes,
        agenda: Agenda,
        declared: Callable[[str], Declared | None],
        is_http: Callable[[str], bool],
        journal: Journal,
    ) -> None:
        self.agenda, self._declared, self._is_http = agenda, declared, is_http
        self.journal = journal
        self.now_us = self.started_us = 0
        self.at = 0
        """Number of the record that is being applied."""
        self.cause = 0
        """Number of the first record that made something fail."""
        self.unfilled: dict[Visit, None] = {}
        """Spreads with a place to fill once the record is applied."""
        self.calls: list[tuple[Visit, TaskCall, bytes]] = []
        """Tasks that are about to be scheduled, in one command."""
        self.calls_cost = 0
        """Steps that it took to make their inputs."""
        self.tasks: dict[int, Place] = {}
        self.children: dict[int, Place] = {}
        self.timers: dict[int, Place] = {}
        self.stopped: dict[int, Place | None] = {}
        """Tasks, and under -1 - n child runs, that were cancelled: they may have succeeded before. None: its place is not known."""
        self.undoable: list[UndoableExecution] = []
        self.given: dict[Place, bytes] = {}
        """What executions that can be undone were called with."""
        self.promises: PromiseWaits[Place] = PromiseWaits(run_id)
        self.signals: MessageWaits[bytes, Place] = MessageWaits()
        self.signalled: set[str] = set()
        """Names that a signal has answered; such a name is not looked up in the state any more."""

    def call(self, visit: Visit, call: TaskCall, data: bytes) -> None:
        """A single task. Those that follow each other and differ in their input alone share a command."""
        before = self.calls[0][1] if self.calls else call
        if before is not call and not _is_alike(before, call):
            self.flush()
        visit.handles[0] = None
        if visit.node.compensate is not None:
            self.given[visit, 0] = data
        self.calls.append((visit, call, data))
        steps = self.agenda.meter.steps
        if steps < EXPR_STEPS_MAX:
            self.calls_cost += EXPR_STEPS_MAX - steps
            if self.calls_cost > FILL_STEPS:
                self.flush()  # tasks whose inputs took long to make begin before the rest of the decision is made

    def flush(self) -> None:
        calls, self.calls, self.calls_cost = self.calls, [], 0
        call = calls[0][1]
        nodes = [v.frame.prefix + v.node.key for v, _, _ in calls]
        seq = self.schedule(call.task, call, [data for _, _, data in calls], nodes)
        for visit, _, _ in calls:
            self.tasks[seq] = (visit, 0)
            visit.handles[0] = seq
            seq += 1

    def schedule(
        self, task: str, call: TaskCall | Services, inputs: list[bytes], nodes: list[str], index: int = -1
    ) -> int:
        """Ask for tasks; returns the number of the first. Queue and options are those of now; a replay takes them from the record, and so
        with the kind of a service: a Python task, or a call over HTTP."""
        options, said = call.options, call.said
        if call.service is not None and self._is_over_http(task):
            options, said = call.service.options, call.service.said
            inputs = [service_input(task, data, call.service.fields) for data in inputs]
            task = SERVICE_TASK
        queue, options = laid_under(self._declared(task), call.queue, options, said)
        return self.journal.schedule_tasks(task, queue, inputs, options, nodes, index)

    def _is_over_http(self, service: str) -> bool:
        recorded = self.journal.next_task
        return recorded == SERVICE_TASK if recorded else self._is_http(service)

    @property
    def ask(self) -> Journal:
        """The journal, after the pending tasks were scheduled."""
        return self.flushed().journal

    def flushed(self) -> Executions:
        """This, after the pending tasks were scheduled."""
        if self.calls:
            self.flush()
        return self

    def limit(self, visit: Visit, index: int) -> int:
        if not visit.node.timeout_us:
            return -1
        seq = self.ask.start_timer(self.now_us + visit.node.timeout_us)
        self.timers[seq] = (visit, index)
        return seq

    def drop_timer(self, seq: int) -> None:
        self.timers.pop(seq, None)
        self.ask.cancel_timer(seq)

    def answered(self, visit: Visit, index: int, name: str, raw: bytes) -> None:
        """A message that an execution waited for has come."""
        waiting = visit.handles[index]
        assert isinstance(waiting, MessageWait)
        waiting.spec = b""
        self.unwait(visit, index)
        verb = visit.node.verb
        value = JsonValue(raw or b"null")
        action = DEFAULT
        try:
            obj = value.obj
        except msgspec.DecodeError as e:
            self.failed(visit, index, Failure("payload_mismatch", f"the message for {name!r} is not JSON: {e}"))
            return
        if isinstance(verb, ApprovalVerb):
            answer = read_answer(obj)
            action = verdict(obj)
            value = value if answer is None else JsonValue.of(answer.as_output())
        elif isinstance(verb, MessageVerb) and verb.lookup:
            self.signalled.add(name)
            try:
                visit.frame.put((name,), obj)
            except Trouble as e:
                self.failed(visit, index, e.failure)
                return
        self.succeeded(visit, index, value.raw, action)

    def unwait(self, visit: Visit, index: int) -> None:
        waiting = visit.handles[index]
        assert isinstance(waiting, MessageWait)
        if waiting.timer >= 0:
            self.drop_timer(waiting.timer)
            waiting.timer = -1
        if waiting.promise:
            self.promises.stop_waiting(waiting.name)
        if waiting.spec:
            self.promises.give_up_event(waiting.spec, waiting.name)
        self.signals.stop_waiting(waiting.signal, (visit, index))

    def check_room(self, visit: Visit) -> None:
        if len(self.undoable) + len(self.given) + visit.count > UNDO_STACK_MAX:
            message = f"the run would have more than UNDO_STACK_MAX={UNDO_STACK_MAX} executions to compensate; move some into a flow of their own"
            raise Trouble(Failure("limit_exceeded", message))

    def done(self, visit: Visit, index: int, raw: bytes) -> None:
        """An execution succeeded, perhaps after it was stopped: it can be undone, if its node says how."""
        if visit.node.compensate is not None:
            self.undoable.append(UndoableExecution(visit, index, self.given.pop((visit, index), b""), raw))

    def succeeded(self, visit: Visit, index: int, raw: bytes, action: str = DEFAULT) -> None:
        self.done(visit, index, raw)
        visit.results[index] = raw
        del visit.handles[index]
        if visit.is_spread:
            self.refill(visit)
        else:
            visit.over, visit.action = True, action
            self.agenda.later(visit.frame.node_succeeded, visit, JsonValue(raw), action)

    def failed(self, visit: Visit, index: int, failure: Failure) -> None:
        visit.handles.pop(index, None)
        if visit.node.compensate is not None:
            self.given.pop((visit, index), None)
        if visit.node.on_error == "ignore":
            visit.results[index] = b"null"
            visit.frames.pop(index, None)
            visit.children.pop(index, None)
            self.refill(visit)
            return
        self.cause = self.cause or self.at
        visit.note_failure(index, failure)
        if visit.node.on_error == "collect" and visit.is_spread:
            self.refill(visit)
            return
        self.stop_all(visit)
        self.node_failed(visit, failure if not visit.is_spread else _of_item(failure, index))

    def refill(self, visit: Visit) -> None:
        """Once the record is applied. A big spread refills in batches, to keep its history short."""
        limit = visit.limit or visit.count
        free = limit - len(visit.handles)
        if visit.count <= EAGER_ITEMS or free >= limit // 8 or not visit.handles:
            self.unfilled[visit] = None

    def over(self, visit: Visit) -> None:
        """Every execution has ended, and none stopped the node."""
        if visit.failures:
            self.node_failed(visit, _several(visit))
            return
        visit.over = True
        parts = cast(list[bytes], visit.results)
        value = JsonValue.list_of(parts) if visit.is_spread else JsonValue(parts[0])
        self.agenda.later(visit.frame.node_succeeded, visit, value, visit.action)

    def node_failed(self, visit: Visit, failure: Failure) -> None:
        visit.over = True
        self.cause = self.cause or self.at
        timeout = failure.code == "timeout" and isinstance(visit.node.verb, (MessageVerb, ApprovalVerb))
        self.agenda.later(lambda: visit.frame.node_failed(visit, failure, timeout=timeout))

    def stop_all(self, visit: Visit) -> None:
        if self.calls:
            self.flush()  # so that what is stopped has a number
        visit.over = True
        tasks: list[int] = []
        for index in list(visit.handles):
            handle = visit.handles[index]
            if isinstance(handle, int):
                if (place := self.tasks.pop(handle, None)) is not None:
                    self.stopped[handle] = place
                tasks.append(handle)
                del visit.handles[index]
            else:
                self.stop(visit, index)
        if tasks:
            self.ask.cancel_tasks(sorted(tasks))

    def stop(self, visit: Visit, index: int) -> None:
        """Give up one execution; how it ends does not matter any more."""
        match visit.handles.get(index):
            case SleepTimer() as timer:
                self.drop_timer(timer.seq)
            case ChildRun() as child:
                if (place := self.children.pop(child.seq, None)) is not None:
                    self.stopped[-1 - child.seq] = place
                self.ask.cancel_child(child.seq)
            case MessageWait():
                self.unwait(visit, index)
            case InnerBody() as inner:
                if inner.timer >= 0:
                    self.drop_timer(inner.timer)
                inner.frame.over = True
                for v in inner.frame.visits():
                    self.stop_all(v)
                visit.keep_frame(index, inner.frame)
            case _:
                pass
        visit.handles.pop(index, None)

    def keep_result(self, key: int, raw: bytes) -> None:
        """A stopped execution had succeeded before: if its node is retried, it is not executed again."""
        place = self.stopped.pop(key, None)
        if place is not None:
            visit, index = place
            self.done(visit, index, raw)
            if visit.results[index] is None:
                visit.results[index] = raw
                visit.handles.pop(index, None)

    def keep_late_result(self, event: ev.Event) -> None:
        """An event after the end is decided. It changes nothing, but a retry must not execute again what is recorded."""
        if isinstance(event, ev.TasksSucceeded):
            for seq, raw in zip(event.seqs, event.results, strict=True):
                self.stopped.setdefault(seq, self.tasks.pop(seq, None))
                self.keep_result(seq, raw)
        elif isinstance(event, ev.ChildSucceeded):
            self.stopped.setdefault(-1 - event.seq, self.children.pop(event.seq, None))
            self.keep_result(-1 - event.seq, event.result or b"null")
        elif isinstance(event, ev.TaskFailed):
            self.tasks.pop(event.seq, None)
            self.stopped.pop(event.seq, None)
        elif isinstance(event, ev.ChildFailed | ev.ChildCancelled):
            self.children.pop(event.seq, None)
            self.stopped.pop(-1 - event.seq, None)


def _is_alike(a: TaskCall, b: TaskCall) -> bool:
    """Whether their tasks can share a command."""
    same = (a.options is b.options or a.options == b.options) and a.service == b.service
    return same and a.task == b.task and a.queue == b.queue and a.said == b.said


def _of_item(failure: Failure, index: int) -> Failure:
    return Failure(failure.code, f"[{index}] {failure.message}", failure.type, failure.traceback)


def _several(visit: Visit) -> Failure:
    failures = [visit.failures[i] for i in sorted(visit.failures)]
    if not visit.is_spread:
        return failures[0]
    shown: Iterable[str] = (f"[{i}] {visit.failures[i].message}" for i in sorted(visit.failures)[:SHOWN_FAILURES])
    more = f"; and {len(failures) - SHOWN_FAILURES} more" if len(failures) > SHOWN_FAILURES else ""
    first = failures[0]
    return Failure(first.code, clip(f"{len(failures)} of {visit.count} failed: {'; '.join(shown)}{more}"), first.type)
