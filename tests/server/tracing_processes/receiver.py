"""A collector of traces: takes OTLP over gRPC and appends every span to a file, one JSON object per line."""

from __future__ import annotations

import json
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


class Collector(TraceServiceServicer):  # type: ignore[misc]
    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        with self._lock, self._file.open("a") as out:
            for resource in request.resource_spans:
                service = {a.key: value_of(a.value) for a in resource.resource.attributes}["service.name"]
                for scope in resource.scope_spans:
                    for s in scope.spans:
                        row = {
                            "service": service, "name": s.name, "kind": s.kind, "trace": s.trace_id.hex(), "span": s.span_id.hex(),
                            "parent": s.parent_span_id.hex(), "start": s.start_time_unix_nano, "end": s.end_time_unix_nano,
                            "status": s.status.code, "message": s.status.message, "events": [e.name for e in s.events],
                            "attributes": {a.key: value_of(a.value) for a in s.attributes},
                        }  # fmt: skip
                        out.write(json.dumps(row) + "\n")
        return ExportTraceServiceResponse()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(Collector(Path(sys.argv[1])), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: server.stop(0))
    server.wait_for_termination()


if __name__ == "__main__":
    main()
