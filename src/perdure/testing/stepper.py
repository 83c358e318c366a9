"""A recorded history, given to workflow code one event at a time. Nothing is executed but the code itself."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import msgspec

from perdure.core import events as ev
from perdure.core.errors import NondeterminismError
from perdure.core.run_retry import effective
from perdure.sdk.definitions import Workflow
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.sdk.workflow.phases import Running
from perdure.sdk.workflow.transitions import apply, finish


class Suspended(msgspec.Struct, frozen=True):
    """Where a coroutine of the workflow waits."""

    file: str
    line: int
    function: str
    source: str


class Stepper:
    """`is_own` tells code of the workflow from that of Perdure and the standard library."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        run_id: bytes,
        history: list[ev.Recorded],
        is_own: Callable[[CodeType], bool],
    ) -> None:
        guards.install()
        self._workflow, self._run_id, self._is_own = workflow, run_id, is_own
        self.records = ev.from_beginning(effective(history))
        self.at = 0
        """How many of the records have been given."""
        self._instance: WorkflowInstance | None = None

    @property
    def last(self) -> ev.Recorded | None:
        """The record that was given last."""
        return self.records[self.at - 1] if self.at else None

    @property
    def mismatch(self) -> NondeterminismError | None:
        return self._instance.run.journal.mismatch if self._instance is not None else None

    def restart(self) -> None:
        self.close()
        self._instance = WorkflowInstance(self._run_id, self._workflow)
        self._instance.run.journal.load(self.records)
        self.at = 0

    def step(self) -> None:
        """Give the next record, and let the code go as far as it can."""
        assert self._instance is not None
        run = self._instance.run
        self.at += 1
        if apply(run, self.records[self.at - 1]):
            run.loop.run_until_idle()
            phase = run.phase
            if type(phase) is Running and phase.main is not None and phase.main.done():
                finish(run, phase, phase.main)

    def frames(self) -> list[FrameType]:
        """The suspended frames of the workflow's own function, the outermost first; none once it has ended."""
        run = self._instance.run if self._instance is not None else None
        phase = run.phase if run is not None else None
        if type(phase) is not Running or phase.main is None or phase.main.done():
            return []
        return _awaiting(phase.main.get_coro(), self._is_own)

    def suspended(self) -> list[Suspended]:
        """Where every coroutine of the workflow waits."""
        run = self._instance.run if self._instance is not None else None
        tasks = run.loop.live_tasks if run is not None else []
        found = [frames[-1] for task in tasks if (frames := _awaiting(task.get_coro(), self._is_own))]
        return [
            Suspended(
                f.f_code.co_filename,
                f.f_lineno,
                f.f_code.co_qualname,
                linecache.getline(f.f_code.co_filename, f.f_lineno).strip(),
            )
            for f in found
        ]

    def waits_for(self) -> list[str]:
        run = self._instance.run if self._instance is not None else None
        if run is None or run.closed:
            return []
        return [
            *run.requests.outstanding(),
            *(f"promise {n!r}" for n in run.promises.waits.waiting_names()),
            *run.waiting_names(),
        ]

    def close(self) -> None:
        if self._instance is not None:
            instance, self._instance = self._instance, None
            instance.evict()


def _awaiting(coro: Any, is_own: Callable[[CodeType], bool]) -> list[FrameType]:
    frames: list[FrameType] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None and is_own(frame.f_code):
            frames.append(frame)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return frames
