"""Spans whose texts are masked before they leave the process: users' code and instrumentations put URLs and headers into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status


class RedactedSpans(SpanExporter):
    def __init__(self, inner: SpanExporter, redact: Callable[[str], str]) -> None:
        self._inner, self._redact = inner, redact

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([self._clean(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def _clean(self, span: ReadableSpan) -> ReadableSpan:
        if all(self._redact(text) is text for text in _texts(span)):
            return span
        status = span.status
        if status.description:
            status = Status(status.status_code, self._redact(status.description))
        return ReadableSpan(
            name=self._redact(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=self._attributes(span.attributes),
            events=[Event(self._redact(e.name), self._attributes(e.attributes), e.timestamp) for e in span.events],
            links=span.links,
            kind=span.kind,
            status=status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def _attributes(self, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
        return {name: self._value(value) for name, value in (attributes or {}).items()}

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._redact(item) if isinstance(item, str) else item for item in value]
        return value


def _texts(span: ReadableSpan) -> Iterator[str]:
    yield span.name
    if span.status.description:
        yield span.status.description
    for name, attributes in (("", span.attributes), *((e.name, e.attributes) for e in span.events)):
        yield name
        for value in (attributes or {}).values():
            if isinstance(value, str):
                yield value
            elif isinstance(value, Sequence):
                yield from (item for item in value if isinstance(item, str))
