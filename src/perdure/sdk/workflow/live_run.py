"""A live run as its workflow code sees it: its clock, its state, and the parts that keep what it asked for.

`requests` keeps tasks, timers, children and operations; `signals`, `promises` and `updates` (messages.py) keep messages; `undo` keeps
what can be undone. The instance drives it (instance.py), and its phase says what events do to it (transitions.py).
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from perdure.core import events as ev
from perdure.core.attributes import AttributeValue, changed, check_bounds, decode_attributes, encode_attributes
from perdure.core.errors import InvalidInput
from perdure.core.journal import Journal
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import WAITING_NAMES_MAX
from perdure.sdk.captured_output import WORKFLOW_SEQ, OutputBuffer, OutputSink
from perdure.sdk.payloads.access import NO_ACCESS, blob_access
from perdure.sdk.workflow.current_run import CurrentRun
from perdure.sdk.workflow.loop import WorkflowLoop
from perdure.sdk.workflow.messages import RunPromises, RunSignals, RunUpdates
from perdure.sdk.workflow.phases import CLOSED, InstancePhase, Running
from perdure.sdk.workflow.requests import Requests
from perdure.sdk.workflow.step import Waiter
from perdure.sdk.workflow.undo import UndoStack

current: contextvars.ContextVar[LiveRun] = contextvars.ContextVar("perdure_run")
"""The run whose workflow code is executing; unset everywhere else."""

T = TypeVar("T")


class _Part(Generic[T]):
    """A part that is made when it is first used. Thousands of runs begin in a second, and each uses few of them."""

    def __init__(self, make: Callable[[Requests], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, run: LiveRun, owner: type) -> T:
        made = self._make(run.requests)
        setattr(run, self.name, made)
        run.has_messages = True
        return made


class LiveRun:
    # What most runs never set is no attribute of their own: thousands of runs begin in a second.
    started: ev.RunStarted | None = None
    undo_if_any: UndoStack | None = None
    has_messages = False
    """Its code has waited for messages, or some have come."""
    now_us = started_us = event_seq = steps = 0
    _attributes: bytes | None = None
    _output: OutputBuffer | None = None
    _random: random.Random | None = None

    signals = _Part(RunSignals)
    promises = _Part(RunPromises)
    updates = _Part(RunUpdates)

    def __init__(
        self, run_id: bytes, workflow: Any, sink: OutputSink | None, ns: int, journal: Journal | None = None
    ) -> None:
        """Captured lines go to `sink`; None: output is not captured."""
        self.run_id, self.workflow, self.sink, self.ns = run_id, workflow, sink, ns
        self.phase: InstancePhase = Running()
        self.journal = journal or Journal()
        self.requests: Requests = Requests(self)
        self.loop = WorkflowLoop(self.requests, run_id)
        self.state: dict[str, bytes] = {}
        self.context = contextvars.copy_context()
        self.context.run(current.set, self)
        self.context.run(blob_access.set, NO_ACCESS)

    @property
    def seed(self) -> bytes:
        """The id that everything follows from which must be the same in a replay: of a fork, that of the first run of its lineage."""
        started = self.started
        return started.lineage[0] if started is not None and started.lineage else self.run_id

    @property
    def closed(self) -> bool:
        return self.phase.closed

    def captured_output(self) -> OutputBuffer | None:
        """Where lines of the code go; None: they are not captured. Output of a replay was captured when the code first ran.

        A chunk is numbered after the event that the code was reacting to: the same number after a replay, on any worker.
        """
        if self.sink is None or self.closed or self.journal.is_replaying:
            return None
        output = self._output
        if output is None:
            output = self._output = OutputBuffer(self.sink, (self.run_id, WORKFLOW_SEQ, 0, self.ns))
        if not output.lines:
            output.n = self.event_seq
        return output

    def close_output(self) -> None:
        if self._output is not None:
            self._output.close()

    @property
    def undo(self) -> UndoStack:
        if self.undo_if_any is None:
            self.undo_if_any = UndoStack(self.requests)
        return self.undo_if_any

    def refuse_left_undos(self) -> None:
        if self.undo_if_any is not None and not self.undo_if_any.is_empty:
            raise InvalidInput(
                "the run cannot continue as new: its undo stack is not empty, and a fresh run does not know of it. Call "
                "`await wf.unwind()` to undo it, or wf.commit_undo() if there is no way back, before wf.continue_as_new()"
            )

    def begin_task(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        """Code of the workflow beside its own function."""
        self.loop.create_task(coro, name=name, context=self.context.copy())

    def set_state(self, name: str, value: bytes | None) -> None:
        self.journal.write_state(name, value)
        if value is None:
            self.state.pop(name, None)
        else:
            self.state[name] = value

    def set_attribute(self, name: str, value: AttributeValue | datetime | None) -> None:
        change = encode_attributes({name: value})
        after = changed(self._attributes_now(), change)
        check_bounds(decode_attributes(after))
        self.journal.set_attributes(change)
        self._attributes = after

    def attribute(self, name: str) -> AttributeValue | None:
        return decode_attributes(self._attributes_now()).get(name)

    def _attributes_now(self) -> bytes:
        if self._attributes is None:
            assert self.started is not None
            return self.started.attributes
        return self._attributes

    def input_object(self) -> Any:
        """The arguments of the run by their names."""
        assert self.started is not None
        return msgspec.json.decode(self.encode_input(*self.workflow.signature.decode_call(self.started.input)))

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        data: bytes = self.workflow.signature.encode_call(args, kwargs)
        return data

    def info(self) -> CurrentRun:
        started = self.started
        assert started is not None
        return CurrentRun(self.run_id, self.workflow, started.key, RunStatus.RUNNING.word, lambda: started.input)

    def randomness(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self.seed)
        return self._random

    def uuid(self) -> UUID:
        return UUID(int=self.randomness().getrandbits(128), version=4)

    def waiting_names(self) -> list[str]:
        """Signals and updates that the code waits for: no record shows them."""
        if self.closed:
            return []
        names: list[str] = []
        for kind, waits in (("signal", self.signals.waits), ("update", self.updates.waits)):
            waits.forget_if(_is_done)
            names += [f"{kind}:{name}" for name in waits.waiting_names()]
        return names[:WAITING_NAMES_MAX]

    def full_names(self) -> list[str]:
        """Signals of which more are buffered than the code may leave unread."""
        return sorted(self.signals.waits.full)[:WAITING_NAMES_MAX]

    def whereabouts(self) -> str:
        waits = self.requests.outstanding() + [f"promise {n!r}" for n in self.promises.waits.waiting_names()]
        return "the code went on without it and now waits for " + (", ".join(waits) or "nothing it asked for")

    def evict(self) -> None:
        """Forget the live coroutine. Its code must not act any more, not even in `finally`."""
        self.phase = CLOSED
        self.loop.throw_away()
        # Cut reference cycles: thousands of ended runs a second are not left to the collector.
        self.requests.forget_all()
        del self.loop.owner, self.context, self.requests
        if self.has_messages:
            for name in ("signals", "promises", "updates"):
                self.__dict__.pop(name, None)
        self.undo_if_any = None


def _is_done(waiter: Waiter) -> bool:
    return waiter.done
