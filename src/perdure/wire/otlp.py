"""How traces, metrics and logs leave a process: OpenTelemetry's own exporters, set up by the environment variables that it defines.

Nothing of OpenTelemetry is imported unless OTEL_EXPORTER_OTLP_ENDPOINT (or its variant for a signal) is set, or a caller asks for traces.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

Signal = Literal["traces", "metrics", "logs"]
EXPORTERS: Final[dict[Signal, tuple[str, str]]] = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
"""Signal -> module and class."""
FLUSH_S: Final = 5.0
"""How long a process waits for a collector to take what it sends, and for the last spans when it ends."""


def wanted(signal: Signal = "traces") -> bool:
    """Whether the environment asks for traces, metrics or logs."""
    environment, name = os.environ, signal.upper()
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get(f"OTEL_{name}_EXPORTER") == "none":
        return False
    return bool(
        environment.get(f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT") or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    )


def _exporter(signal: Signal) -> Any:
    """perdure[otel] brings the gRPC exporters; for OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf install OpenTelemetry's other package."""
    named = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
    protocol = named or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    module, name = EXPORTERS[signal]
    try:
        way = "http" if protocol.startswith("http") else "grpc"
        return getattr(import_module(f"opentelemetry.exporter.otlp.proto.{way}.{module}"), name)()
    except ImportError as e:
        raise PerdureError(
            f"OpenTelemetry was asked for, but a part of it is missing ({e}); install perdure[otel] or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from e


def batches(redact: Callable[[str], str] | None = None) -> BatchSpanProcessor:
    """Sends spans in batches, from a thread of its own. `redact` masks what their texts must not show."""
    exporter = _exporter("traces")
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional

    if redact is not None:
        from perdure.wire.otlp_redaction import RedactedSpans  # noqa: PLC0415 - needs OpenTelemetry

        exporter = RedactedSpans(exporter, redact)
    return BatchSpanProcessor(exporter)


def metric_exporter() -> Any:
    return _exporter("metrics")


def log_handler(service: str) -> tuple[logging.Handler, Callable[[], object]]:
    """A handler that sends log records in batches, and what sends the last ones."""
    exporter = _exporter("logs")
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler  # noqa: PLC0415 - optional
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor  # noqa: PLC0415 - optional

    provider = LoggerProvider(resource=resource(service), shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    with warnings.catch_warnings():
        # Its successor is in a package of instrumentations, which this process does not need otherwise.
        warnings.simplefilter("ignore", DeprecationWarning)
        return LoggingHandler(logger_provider=provider), provider.shutdown


def resource(service: str) -> Resource:
    """What the sender is called: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, else the service's own name."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if named else {"service.name": service})


def process_provider(service: str, redact: Callable[[str], str] | None = None) -> TracerProvider:
    """The process's tracer provider: the user's own where one is set up, so that their spans and ours go the same way; else a new one, whose
    spans are masked by `redact`."""
    from opentelemetry import trace  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional

    found = trace.get_tracer_provider()
    if isinstance(found, TracerProvider):
        return found
    made = TracerProvider(resource=resource(service))
    made.add_span_processor(batches(redact))
    trace.set_tracer_provider(made)
    return made


async def flush(act: Callable[[], object]) -> bool:
    """Do it in a thread, for FLUSH_S at most. A collector that does not answer delays nothing else, and the thread ends with the process."""
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

    threading.Thread(target=work, name="perdure-otlp", daemon=True).start()
    try:
        async with asyncio.timeout(FLUSH_S):
            await done.wait()
    except TimeoutError:
        return False
    return True
