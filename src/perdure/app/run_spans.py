"""Spans of runs, written by the engine that commits their end.

A run may live for weeks and in many processes, so its span cannot be an object in memory. Its ids are derived from the
run id (core/trace.py); the engine that commits the end writes the whole span, with the start and end of the history. Tasks
and children have named it as their parent long before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from perdure.core import ids
from perdure.core.lifecycle import RunStatus
from perdure.core.trace import parse, run_traceparent
from perdure.engine.events import RunEnd
from perdure.wire import otlp

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor

log = logging.getLogger("perdure.server")

SERVICE = "perdure-server"


class _GivenIds(IdGenerator):
    """Hands out the ids that the next span is to have."""

    trace_id = span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class RunTracer:
    """Subscribe `run_ended` to an engine: `engine.events.run_ended.subscribe(tracer.run_ended)`."""

    def __init__(self, processor: SpanProcessor, resource: Resource, now_us: Callable[[], int]) -> None:
        self._ids, self._now_us = _GivenIds(), now_us
        # Whether a run is sampled was decided when it began: its tasks go by the same flag.
        sampler = ParentBased(ALWAYS_ON)
        self._provider = TracerProvider(
            sampler=sampler, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("perdure")

    def run_ended(self, end: RunEnd) -> None:
        try:
            self._write(end)
        except Exception:
            log.exception("the span of run %s was not written", ids.text(end.run_id))

    def _write(self, end: RunEnd) -> None:
        own = parse(run_traceparent(end.run_id, end.trace))
        assert own is not None
        failure = end.outcome.failure
        self._ids.trace_id, self._ids.span_id = int(own.trace_id, 16), int(own.span_id, 16)
        attributes: dict[str, str | int] = {
            "perdure.run_id": ids.text(end.run_id),
            "perdure.workflow": end.workflow,
            "perdure.version": end.version,
            "perdure.status": RunStatus(end.outcome.status).name.lower(),
            "perdure.events": end.events,
        }
        if end.successor is not None:
            attributes["perdure.continued_in"] = ids.text(end.successor)
        span = self._tracer.start_span(
            f"run {end.workflow}",
            context=_caller(end.trace),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=ids.unix_ms_of(end.run_id) * 1_000_000,
        )
        if failure is not None:
            span.set_attribute("error.type", failure.type or failure.code)
            span.set_status(Status(StatusCode.ERROR, f"{failure.code}: {failure.message}"))
        span.end(end_time=self._now_us() * 1_000)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _caller(trace: str) -> Context:
    """The span that started the run, or none; never the one that happens to be current."""
    found = parse(trace)
    if found is None:
        return Context()
    parent = SpanContext(int(found.trace_id, 16), int(found.span_id, 16), True, TraceFlags(found.flags))
    return set_span_in_context(NonRecordingSpan(parent), Context())


def run_tracer(now_us: Callable[[], int], service: str = SERVICE) -> RunTracer:
    """One that exports as the environment says."""
    return RunTracer(otlp.batches(), otlp.resource(service), now_us)
