"""One live workflow run inside a worker: the user's coroutine, its journal and its loop.

Laws:

1. `activate` never raises: an error of the user's code becomes commands, or a decision that is `stuck` with the reason. So is one about a
   message that the code cannot read: it says nothing about the run's work, so it undoes none of it.
2. Events are applied one at a time, in history order, and the code runs until it can go no further after each. So how
   events were grouped into activations makes no difference, and a replay takes the same path as the first run.
3. Nothing outside the history reaches the code: time, randomness and identity all come from it.

    Activation(events) -> apply event -> run_until_idle -> ... -> Decided(commands)

The run itself is live_run.py; where it stands is its phase (phases.py), and what an event does to it is transitions.py.
"""

from __future__ import annotations

from math import inf
from time import perf_counter  # bound here, before workflow guards wrap it
from typing import Any

from perdure.core import events as ev
from perdure.core.errors import Failure, NondeterminismError, clip
from perdure.core.journal import Journal
from perdure.core.work import Decided
from perdure.sdk.captured_output import OutputSink
from perdure.sdk.workflow.endings import trace_of
from perdure.sdk.workflow.live_run import LiveRun
from perdure.sdk.workflow.phases import Running
from perdure.sdk.workflow.requests import Operation
from perdure.sdk.workflow.transitions import apply, finish


class WorkflowInstance:
    __slots__ = ("_applied", "_code_due", "_given", "_loading", "_replaying", "run", "run_id")

    def __init__(
        self,
        run_id: bytes,
        workflow: Any,
        sink: OutputSink | None = None,
        ns: int = 0,
        journal: Journal | None = None,
    ) -> None:
        """Lines that the code prints go to `sink`; None: they are not captured. `journal`: one that observes what is asked for."""
        self.run_id = run_id
        self.run = LiveRun(run_id, workflow, sink, ns, journal)
        self._given: list[ev.Recorded] = []
        self._applied = 0
        """How many of the given events have been applied."""
        self._code_due = False
        """The code has not gone as far as it can since the last event."""
        self._replaying = self._loading = False

    @property
    def closed(self) -> bool:
        return self.run.closed

    def activate(self, events: list[ev.Recorded], *, replay: bool) -> Decided:
        """Apply events. `replay` says that they are a whole history, whose commands the code must issue again."""
        self.give(events, replay=replay)
        done = self.advance(inf)
        assert done is not None
        return done

    def give(self, events: list[ev.Recorded], *, replay: bool) -> None:
        """Events to be applied by `advance`. The former ones have been."""
        self._given, self._applied, self._replaying, self._loading = events, 0, replay, replay

    def advance(self, until_s: float) -> Decided | None:
        """Apply the given events. None: the time `until_s` (of perf_counter) is up and the code can go further; call it again."""
        run = self.run
        journal = run.journal
        try:
            if self._loading:
                self._loading = False
                self._given = ev.from_beginning(self._given)
                journal.load(self._given)
            given, applied, code_due = self._given, self._applied, self._code_due
            while True:
                if code_due:
                    if not run.loop.run_until_idle(until_s):
                        self._applied, self._code_due = applied, True
                        return None
                    self._code_due = code_due = False
                    phase = run.phase
                    if type(phase) is Running and phase.main is not None and phase.main.done():
                        finish(run, phase, phase.main)
                if applied == len(given) or journal.mismatch is not None or journal.unreadable is not None:
                    break
                if applied and perf_counter() >= until_s:
                    self._applied = applied
                    return None
                code_due = apply(run, given[applied])
                applied += 1
            if self._replaying and journal.mismatch is None and journal.unreadable is None:
                journal.check_all_matched(run.whereabouts)
        except NondeterminismError as e:
            journal.mismatch = journal.mismatch or e
        except Exception as e:
            return self._stuck(Failure("internal", clip(trace_of(e)), type(e).__name__))
        if journal.mismatch is not None:
            return self._stuck(journal.mismatch.to_failure())
        if journal.unreadable is not None:
            return self._stuck(journal.unreadable.to_failure())
        waiting, full = (run.waiting_names(), run.full_names()) if run.has_messages else ([], [])
        operations = len(run.requests.new_operations)
        return Decided(self.run_id, journal.take_commands(), None, operations, False, waiting, full=full)

    def _stuck(self, failure: Failure) -> Decided:
        return Decided(self.run_id, [], failure)

    def take_operations(self) -> list[Operation]:
        """The side effects that the code asked for since they were last taken."""
        taken, self.run.requests.new_operations = self.run.requests.new_operations, []
        return taken

    def evict(self) -> None:
        self.run.evict()
