"""One live workflow run inside a worker: the user's coroutine, its journal and its loop.

Laws:

1. `activate` never raises: an error of the user's code becomes commands, or a completion that is `stuck` with the reason.
2. Events are applied one at a time, in history order, and the code runs until it can go no further after each. So how
   events were grouped into activations makes no difference, and a replay takes the same path as the first run.
3. Nothing outside the history reaches the code: time, randomness and identity all come from it.

    Activation(events) -> apply event -> run_until_idle -> ... -> Completion(commands, operations to execute)

The run itself is live_run.py; where it stands is its phase (phases.py), and what an event does to it is transitions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import perf_counter  # bound here, before workflow guards wrap it
from typing import Any

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.errors import Failure, NondeterminismError, clip
from perdure.sdk.captured_output import OutputSink
from perdure.sdk.workflow import transitions
from perdure.sdk.workflow.endings import trace_of
from perdure.sdk.workflow.live_run import LiveRun
from perdure.sdk.workflow.phases import Running
from perdure.sdk.workflow.requests import Operation


class Completion:
    """What an activation led to."""

    __slots__ = ("commands", "operations", "run_id", "stuck", "waiting")

    def __init__(
        self,
        run_id: bytes,
        commands: list[cm.Command],
        operations: Sequence[Operation],
        stuck: Failure | None = None,
        waiting: list[str] | None = None,
    ) -> None:
        self.run_id, self.commands, self.operations, self.stuck = run_id, commands, operations, stuck
        self.waiting: list[str] = waiting or []


class WorkflowInstance:
    def __init__(self, run_id: bytes, workflow: Any, sink: OutputSink | None = None, ns: int = 0) -> None:
        """Lines that the code prints go to `sink`; None: they are not captured."""
        self.run_id = run_id
        self.run = LiveRun(run_id, workflow, sink, ns)
        self._given: list[ev.Recorded] = []
        self._applied = 0
        """How many of the given events have been applied."""
        self._code_due = False
        """The code has not gone as far as it can since the last event."""
        self._replaying = self._loading = False

    @property
    def closed(self) -> bool:
        return self.run.closed

    def activate(self, events: list[ev.Recorded], *, replay: bool) -> Completion:
        """Apply events. `replay` says that they are a whole history, whose commands the code must issue again."""
        self.give(events, replay=replay)
        done = self.advance(inf)
        assert done is not None
        return done

    def give(self, events: list[ev.Recorded], *, replay: bool) -> None:
        """Events to be applied by `advance`. The former ones have been."""
        self._given, self._applied, self._replaying, self._loading = events, 0, replay, replay

    def advance(self, until_s: float) -> Completion | None:
        """Apply the given events. None: the time `until_s` (of perf_counter) is up and the code can go further; call it again."""
        run, journal = self.run, self.run.journal
        try:
            if self._loading:
                self._loading = False
                self._given = ev.from_beginning(self._given)
                journal.load(self._given)
            given = self._given
            while True:
                if self._code_due:
                    if not run.loop.run_until_idle(until_s):
                        return None
                    self._code_due = False
                    phase = run.phase
                    if type(phase) is Running and phase.main is not None and phase.main.done():
                        transitions.finish(run, phase, phase.main)
                applied = self._applied
                if applied == len(given) or journal.mismatch is not None:
                    break
                if applied and perf_counter() >= until_s:
                    return None
                self._applied = applied + 1
                self._code_due = transitions.apply(run, given[applied])
            if self._replaying and journal.mismatch is None:
                journal.check_all_matched(run.whereabouts)
        except NondeterminismError as e:
            journal.mismatch = journal.mismatch or e
        except Exception as e:
            return self._stuck(Failure("internal", clip(trace_of(e)), type(e).__name__))
        if journal.mismatch is not None:
            return self._stuck(journal.mismatch.to_failure())
        operations = run.requests.new_operations or ()
        if operations:
            run.requests.new_operations = []
        waiting = run.waiting_names() if run.has_messages else None
        return Completion(self.run_id, journal.take_commands(), operations, None, waiting)

    def _stuck(self, failure: Failure) -> Completion:
        return Completion(self.run_id, [], [], failure)

    def evict(self) -> None:
        self.run.evict()
