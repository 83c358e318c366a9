"""A program that traces itself and starts runs, by a server or straight in the database; it executes none."""

from __future__ import annotations

import asyncio
import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from perdure import Client, Perdure
from perdure.errors import RunFailed
from tests.server.tracing_processes.flows import doomed, outer


async def main() -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "caller"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    server = os.environ.get("PERDURE_GRPC")
    async with Client(server) if server else Perdure(os.environ["PERDURE_DSN"], worker=False):
        with trace.get_tracer("caller").start_as_current_span("handle request"):
            handle = await outer.start("you")
        print(handle.id, await handle.result(), flush=True)
        untraced = await outer.start("me")
        print(untraced.id, await untraced.result(), flush=True)
        failed = await doomed.start()
        try:
            await failed.result()
        except RunFailed:
            print(failed.id, "failed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
