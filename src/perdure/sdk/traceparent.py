"""The caller's trace, which goes with a start. OpenTelemetry is optional: without it a start carries no trace."""

from __future__ import annotations

import sys
from typing import Any


def current_traceparent() -> str:
    """W3C traceparent of the span that is active here, or "". A program that has one has imported OpenTelemetry itself."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
