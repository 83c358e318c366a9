"""Plain functions as attempts: called in threads, and interrupted there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context
from time import thread_time_ns  # bound here, before workflow guards wrap it
from typing import Any

import msgspec

from perdure.core.retry import End
from perdure.core.work import Report
from perdure.sdk.worker.attempt_secrets import TaskSecrets, check_result
from perdure.sdk.worker.attempts import Attempt, AttemptCancelled, Slot, current_slot
from perdure.sdk.worker.reports import ended_report, error_report, success_report
from perdure.sdk.worker.surroundings import surrounded
from perdure.sdk.worker.task_payloads import TaskPayloads
from perdure.sdk.worker.threads import ThreadInterrupt
from perdure.sdk.worker.tracing import TaskTracer


class TaskBorder(msgspec.Struct, frozen=True):
    """What inputs and results go through."""

    payloads: TaskPayloads
    secrets: TaskSecrets


class PlainCalls:
    """Runs in the threads of a lane. `claims` guards what executes an attempt."""

    def __init__(
        self,
        find: Callable[[str], Any],
        clock_us: Callable[[], int],
        claims: threading.Lock,
        context: Context,
        border: TaskBorder,
        tracer: TaskTracer | None,
    ) -> None:
        self._find, self._clock_us, self._claims = find, clock_us, claims
        self._context, self._border, self._tracer = context, border, tracer

    def run(self, info: Attempt) -> Report:
        """In a thread: the user's plain function. An interruption may arrive anywhere between the two ends of the hold."""
        started, began_ns = self._clock_us(), thread_time_ns()
        report: Report | None = None
        hold = ThreadInterrupt()
        while True:
            try:
                if report is None:
                    with self._claims:
                        info._runner = hold
                    report = self._call(info, started)
                hold.close()
                report.cpu_us = (thread_time_ns() - began_ns) // 1000
                return report
            except AttemptCancelled:
                report = report or ended_report(info._assignment, End.CANCELLED, started, self._clock_us())

    def _call(self, info: Attempt, started: int) -> Report:
        a = info._assignment
        slot = Slot(info)
        context = self._context.copy()
        context.run(current_slot.set, slot)
        try:
            info.raise_if_cancelled()  # between its claim and its hold
            definition = self._find(a.name)
            payloads = self._border.payloads
            given = self._border.secrets.fill_now(info, payloads.input_now(a.input))
            args, kwargs = definition.signature.decode_call(given)
            fn = definition.fn if self._tracer is None else self._tracer.around(a, definition.fn)
            value = definition.signature.encode_result(context.run(surrounded, fn, *args, **kwargs))
            check_result(info, value)
            value = payloads.result_now(value, a.name)
            if info.cancelled:
                return ended_report(a, End.CANCELLED, started, self._clock_us())
            return success_report(a, value, started, self._clock_us())
        except BaseException as e:  # even SystemExit: it is the task that ends, not the thread
            if info.cancelled:
                return ended_report(a, End.CANCELLED, started, self._clock_us())
            return error_report(a, e, started, self._clock_us())
        finally:
            slot.attempt = None
