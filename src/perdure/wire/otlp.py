"""How spans leave a process: OpenTelemetry's own exporter, set up by the environment variables that OpenTelemetry defines.

Nothing of OpenTelemetry is imported unless OTEL_EXPORTER_OTLP_ENDPOINT (or its variant for traces) is set, or somebody asks.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

FLUSH_S: Final = 5.0
"""How long a process that ends waits for its last spans to be taken."""


def wanted() -> bool:
    """Whether the environment asks for traces."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def _require() -> None:
    try:
        import_module("opentelemetry.sdk.trace.export")
        import_module(_exporter_module())
    except ImportError as e:
        raise PerdureError(
            f"traces were asked for, but a part of OpenTelemetry is missing ({e}); install perdure[otel] or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from e


def batches() -> BatchSpanProcessor:
    """Sends spans in batches, from a thread of its own."""
    _require()
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional

    exporter: SpanExporter = import_module(_exporter_module()).OTLPSpanExporter()
    return BatchSpanProcessor(exporter)


def _exporter_module() -> str:
    """perdure[otel] brings the gRPC exporter; for OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf install OpenTelemetry's other one."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    return f"opentelemetry.exporter.otlp.proto.{'http' if protocol.startswith('http') else 'grpc'}.trace_exporter"


def resource(service: str) -> Resource:
    """Who sends the spans: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else the service's own name."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if named else {"service.name": service})


def process_provider(service: str) -> TracerProvider:
    """The process's tracer provider: the user's own where one is set up, so that their spans and ours go the same way; else a new one."""
    _require()
    from opentelemetry import trace  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional

    found = trace.get_tracer_provider()
    if isinstance(found, TracerProvider):
        return found
    made = TracerProvider(resource=resource(service))
    made.add_span_processor(batches())
    trace.set_tracer_provider(made)
    return made


async def flush(act: Callable[[], object]) -> bool:
    """Let the last spans go. A collector that does not answer holds nobody up: the wait ends, and the thread with the process."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def work() -> None:
        try:
            act()
        finally:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # the loop did not wait so long

    threading.Thread(target=work, name="perdure-flush-spans", daemon=True).start()
    try:
        async with asyncio.timeout(FLUSH_S):
            await done.wait()
    except TimeoutError:
        return False
    return True
