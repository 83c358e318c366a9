"""A collector: takes OTLP over gRPC and appends spans, metrics and log records to files, one JSON object per line.

`receiver.py FILE` writes spans to FILE, and the others to FILE with `.metrics` and `.logs` appended. What came, as it came, is in `FILE.raw`.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import add_LogsServiceServicer_to_server
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import add_MetricsServiceServicer_to_server
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import add_TraceServiceServicer_to_server

Row = dict[str, Any]


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


def attributes_of(owner: Any) -> Row:
    return {a.key: value_of(a.value) for a in owner.attributes}


def service_of(resource: Any) -> str:
    return str(attributes_of(resource.resource)["service.name"])


def spans(request: Any) -> Iterator[Row]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for s in scope.spans:
                yield {
                    "service": service_of(resource),
                    "name": s.name,
                    "kind": s.kind,
                    "trace": s.trace_id.hex(),
                    "span": s.span_id.hex(),
                    "parent": s.parent_span_id.hex(),
                    "start": s.start_time_unix_nano,
                    "end": s.end_time_unix_nano,
                    "status": s.status.code,
                    "message": s.status.message,
                    "events": [e.name for e in s.events],
                    "attributes": attributes_of(s),
                }


def metrics(request: Any) -> Iterator[Row]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for m in scope.metrics:
                kind = m.WhichOneof("data")
                for point in getattr(m, kind).data_points:
                    yield {
                        "service": service_of(resource),
                        "name": m.name,
                        "kind": kind,
                        "attributes": attributes_of(point),
                        "value": point.count if kind == "histogram" else point.as_double,
                        "buckets": list(point.bucket_counts) if kind == "histogram" else [],
                    }


def records(request: Any) -> Iterator[Row]:
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for r in scope.log_records:
                yield {
                    "service": service_of(resource),
                    "logger": scope.scope.name,
                    "level": r.severity_text,
                    "body": value_of(r.body),
                    "attributes": attributes_of(r),
                }


class Collector:
    def __init__(self, file: Path, rows: Callable[[Any], Iterator[Row]], answer: Callable[[], Any]) -> None:
        self._file, self._rows, self._answer, self._lock = file, rows, answer, threading.Lock()

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock, self._file.open("a") as out, self._file.with_name(f"{self._file.name}.raw").open("ab") as raw:
            out.writelines(json.dumps(row) + "\n" for row in self._rows(request))
            raw.write(request.SerializeToString())
        return self._answer()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(4))
    file = Path(sys.argv[1])
    add_TraceServiceServicer_to_server(Collector(file, spans, ExportTraceServiceResponse), server)
    add_MetricsServiceServicer_to_server(
        Collector(file.with_name(f"{file.name}.metrics"), metrics, ExportMetricsServiceResponse), server
    )
    add_LogsServiceServicer_to_server(
        Collector(file.with_name(f"{file.name}.logs"), records, ExportLogsServiceResponse), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(0))
    server.wait_for_termination()


if __name__ == "__main__":
    main()
