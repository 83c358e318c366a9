"""The spans of a process: those of runs where there is an engine, those of tasks where there is a worker.

OpenTelemetry is imported only when the environment or the caller asks for traces.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from perdure.engine.engine import Engine
from perdure.sdk.worker.tracing import task_tracer
from perdure.wire import otlp

if TYPE_CHECKING:
    from perdure.app.run_spans import RunTracer
    from perdure.sdk.worker.tracing import TaskTracer

log = logging.getLogger("perdure")


class Tracing:
    """`close` it after engine and worker have closed."""

    def __init__(self, service: str, asked: bool | None = None) -> None:
        self._service, self._asked = service, asked
        self._tasks: TaskTracer | None = None
        self._runs: RunTracer | None = None

    def task_tracer(self) -> TaskTracer | None:
        """For a worker that opens."""
        self._tasks = task_tracer(asked=self._asked, service=self._service)
        return self._tasks

    def trace_runs(self, engine: Engine) -> None:
        """Before the engine opens."""
        if self._asked is False or (self._asked is None and not otlp.wanted()):
            return
        from perdure.app.run_spans import run_tracer

        self._runs = run_tracer(engine.clock.now_us, self._service)
        engine.events.run_ended.subscribe(self._runs.run_ended)

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        for act in ([self._runs.close] if self._runs else []) + ([self._tasks.flush] if self._tasks else []):
            if not await otlp.flush(act):
                log.warning("the collector did not take the last spans within %g s; they are lost", otlp.FLUSH_S)
