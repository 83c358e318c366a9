"""Traces on the side of users' code: the caller's span goes with a start, and every attempt of a task is a span.

    caller's span --> run <workflow> (the engine's) --> task <name> (here, one per attempt) --> the user's own spans

OpenTelemetry is optional. Without it, or while no span is active, a start carries no trace and a worker costs nothing more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Token
from traceback import format_exception
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perdure.core import ids
from perdure.core.trace import parse, run_traceparent
from perdure.core.work import Assignment, Report
from perdure.sdk.secrets.known import redacted
from perdure.wire import otlp

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

SERVICE = "perdure-worker"


class TaskTracer:
    """Makes each attempt of a task a span, current while the user's code runs."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace

        self._trace, self._context, self._provider = trace, context, provider
        self._tracer: Tracer = provider.get_tracer("perdure")

    def attempt(self, a: Assignment) -> AttemptSpan:
        """Enter and leave it in the context in which the task runs."""
        return AttemptSpan(self._start(a))

    def around(self, a: Assignment, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The user's function, inside the attempt's span."""
        if inspect.iscoroutinefunction(fn):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self.attempt(a):
                    return await fn(*args, **kwargs)

            return awaited

        def called(*args: Any, **kwargs: Any) -> Any:
            with self.attempt(a):
                return fn(*args, **kwargs)

        return called

    def around_report(self, a: Assignment, run: Callable[[], Report]) -> Report:
        """For code that runs in another process: what is known of it here is how it ended."""
        with self.attempt(a) as span:
            report = run()
            if report.failure is not None:
                span.fail(report.failure.type or report.failure.code, report.failure.message)
            return report

    def _start(self, a: Assignment) -> Span:
        attributes: dict[str, str | int] = {
            "perdure.run_id": ids.text(a.run_id),
            "perdure.task": a.name,
            "perdure.seq": a.seq,
            "perdure.attempt": a.attempt,
        }
        if a.queue:
            attributes["perdure.queue"] = a.queue
        return self._tracer.start_span(
            f"task {a.name}", context=self._parent(a), kind=self._trace.SpanKind.CONSUMER, attributes=attributes
        )

    def _parent(self, a: Assignment) -> Context:
        found = parse(a.trace) or parse(run_traceparent(a.run_id, ""))
        assert found is not None
        parent = self._trace.SpanContext(
            int(found.trace_id, 16), int(found.span_id, 16), True, self._trace.TraceFlags(found.flags)
        )
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(parent), self._context.Context())

    def flush(self) -> None:
        """Send what is left. The provider is the process's and stays: users' spans may follow."""
        force_flush: Callable[[int], object] | None = getattr(self._provider, "force_flush", None)
        if force_flush is not None:
            force_flush(int(otlp.FLUSH_S * 1000))


class AttemptSpan(AbstractContextManager["AttemptSpan"]):
    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[Context] | None = None

    def __enter__(self) -> AttemptSpan:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        from opentelemetry import context

        if self._token is not None:
            context.detach(self._token)
        if isinstance(error, Exception):
            trace = "".join(format_exception(error))
            said = {"exception.message": redacted(str(error)), "exception.stacktrace": redacted(trace)}
            self._span.record_exception(error, attributes=said)
            self.fail(type(error).__name__, str(error))
        elif error is not None:  # it was cancelled, or the process is going down
            self._span.set_attribute("perdure.cancelled", True)
        self._span.end()

    def fail(self, kind: str, message: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, redacted(f"{kind}: {message}")))


def task_tracer(*, asked: bool | None = None, service: str = SERVICE) -> TaskTracer | None:
    """The tracer of this process's tasks; None when tracing is off. `asked` None leaves it to the environment."""
    if asked is False or (asked is None and not otlp.wanted()):
        return None
    return TaskTracer(otlp.process_provider(service, redacted))
