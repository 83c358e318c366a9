"""Signals, promises and updates as workflow code waits for them. What waits, and what is kept, is core/waits.py."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.approvals import Spec, encode_spec
from perdure.core.errors import Failure, PayloadMismatch, PerdureError, UpdateRejected
from perdure.core.journal import NO_HANDLER, Journal
from perdure.core.waits import MessageWaits, PromiseWaits
from perdure.sdk.workflow.requests import Requests
from perdure.sdk.workflow.step import Step, Waiter, new_step

UPDATES_NAMED: Final = 10
"""Updates that a refusal lists."""
CONTINUED: Final = "the run continued as a new one while it was handling the update; it may have begun to act on it"

update_names: set[str] = set()
"""Names of all `Update`s that this program defines. An update of another name can never be handled."""


class MessageWaiter(Waiter):
    """A step that a message from outside will resolve. One that the code cannot read is no failure of the code, which never sees it: the
    run is stuck until other code reads it, and the step stays open."""

    __slots__ = ("_journal", "_what")

    def __init__(self, journal: Journal, what: str, step: Step[Any], decode: Callable[[bytes], Any]) -> None:
        super().__init__(step, decode)
        self._journal, self._what = journal, what

    def succeed(self, seq: int, value: bytes) -> None:
        if self.step.done():
            return
        try:
            self.step.set_result(self.decode(value))
        except PayloadMismatch as e:
            self._journal.unreadable = self._journal.unreadable or PayloadMismatch(
                f"the code cannot read {self._what}: {e} Deploy code that reads it, then resume the run."
            )
        except PerdureError as e:
            self.step.set_exception(e)


class RunSignals:
    """Signals of one run."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.waits: MessageWaits[bytes, Waiter] = MessageWaits()

    def next(self, name: str, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        step = new_step(self._requests.run, ids.RANDOM, -1)
        waiter = MessageWaiter(self._requests.run.journal, f"signal {name!r}", step, decode)
        value = self.waits.take(name)
        if value is not None:
            waiter.succeed(-1, value)
        else:
            self.waits.wait(name, waiter)
            self._requests.limit(step, timeout_us, f"no signal {name!r} arrived in time")
        return step

    def received(self, e: ev.SignalReceived) -> None:
        while (waiter := self.waits.next_waiter(e.name)) is not None:
            if not waiter.done:
                waiter.succeed(-1, e.value)
                return
        self.waits.buffer(e.name, e.value)


class RunPromises:
    """Promises of one run, its approvals and waits for named events among them."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.waits: PromiseWaits[Waiter] = PromiseWaits(requests.run.seed)

    def wait(self, name: str, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        created = self._requests.run.journal.create_promise(name)
        self.waits.created(created)
        return self._step(name, created.seq, decode, timeout_us, f"promise {name!r} was not resolved in time")

    def wait_approval(self, name: str, spec: Spec, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        promise = self.waits.approval_name(name)
        journal = self._requests.run.journal
        created = journal.create_promise(promise, encode_spec(spec), ev.PromiseKind.APPROVAL)
        self.waits.created(created)
        return self._step(promise, created.seq, decode, timeout_us, f"the approval {name!r} was not decided in time")

    def wait_event(self, event: str, spec: bytes, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        waits = self.waits
        name, seq = waits.event_wait(event, spec)
        if seq < 0:
            created = self._requests.run.journal.create_promise(name, spec, ev.PromiseKind.EVENT)
            waits.created(created)
            seq = created.seq
        step = self._step(name, seq, decode, timeout_us, f"no event {event!r} that fits came in time")
        if not step.done():
            step.add_done_callback(lambda _: waits.give_up_event(spec, name) if waits.value(name) is None else None)
        return step

    def _step(self, name: str, seq: int, decode: Callable[[bytes], Any], timeout_us: int, late: str) -> Step[Any]:
        step = new_step(self._requests.run, ids.PROMISE, seq)
        waiter = MessageWaiter(self._requests.run.journal, f"the value of promise {name!r}", step, decode)
        value = self.waits.value(name)
        if value is not None:
            waiter.succeed(-1, value)
        else:
            self.waits.wait(name, waiter)
            self._requests.limit(step, timeout_us, late)
        return step

    def resolved(self, e: ev.PromiseResolved) -> None:
        for waiter in self.waits.resolve(e):
            waiter.succeed(-1, e.value)


class RunUpdates:
    """Updates of one run: each is handled by a registered handler, or taken one by one, and answered once."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.waits: MessageWaits[ev.UpdateReceived, Waiter] = MessageWaits()
        self._handlers: dict[str, Callable[[ev.UpdateReceived], None]] = {}
        self._begun: dict[str, None] = {}
        """Ids of updates that the code has taken and not answered, in their order."""

    def handle(self, name: str, handler: Callable[[ev.UpdateReceived], None]) -> None:
        """From now on `handler` gets each update of that name, first those that are buffered. It must not block or raise."""
        self._handlers[name] = handler
        for e in self.waits.take_all(name):
            self._begin(e, handler)

    def next(self, name: str, timeout_us: int) -> Step[Any]:
        step = new_step(self._requests.run, ids.RANDOM, -1)
        update = self.waits.take(name)
        if update is not None:
            self._begin(update, step.set_result)
        else:
            self.waits.wait(name, Waiter(step, bytes))
            self._requests.limit(step, timeout_us, f"no update {name!r} was asked for in time")
        return step

    def answer(self, id: str, value: bytes, failure: Failure | None) -> None:
        """The first answer stands."""
        if id in self._begun and not self._requests.run.closed:
            del self._begun[id]
            self._requests.run.journal.answer_update(id, value, failure)

    def refuse_begun(self) -> None:
        """The run continues in a new one. An update that was begun cannot be begun again there; the engine hands on the others."""
        for id in self._begun:
            self._requests.run.journal.answer_update(id, b"", Failure("run_finished", CONTINUED))

    def received(self, e: ev.UpdateReceived) -> None:
        handler = self._handlers.get(e.name)
        if handler is not None:
            self._begin(e, handler)
            return
        while (waiter := self.waits.next_waiter(e.name)) is not None:
            if not waiter.done:
                self._begin(e, waiter.step.set_result)
                return
        journal = self._requests.run.journal
        if journal.is_unhandled(e.id, known=e.name in update_names):
            journal.answer_update(e.id, b"", _unhandled(e.name))
            return
        self.waits.buffer(e.name, e)

    def _begin(self, e: ev.UpdateReceived, give: Callable[[ev.UpdateReceived], None]) -> None:
        self._begun[e.id] = None
        give(e)


def _unhandled(name: str) -> Failure:
    near = get_close_matches(name, update_names, 1)
    known = ", ".join(sorted(update_names)[:UPDATES_NAMED]) or "none"
    hint = f"did you mean {near[0]!r}?" if near else f"it has {known}"
    return Failure(UpdateRejected.code, f"the code of this run has no update {name!r}; {hint}", NO_HANDLER)
