"""The figures of /metrics, pushed to an OpenTelemetry collector.

Every export reads the same registry as a scrape does, so names and values are the same on both ways; a histogram keeps its buckets, which the
observable instruments of OpenTelemetry could not report.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from perdure.server.metrics import Metrics
from perdure.wire import otlp

EVERY_S_DEFAULT: Final = 60.0
CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class Exporter(Protocol):
    def export(self, metrics_data: MetricsData) -> object: ...
    def shutdown(self) -> object: ...


class MetricsExport:
    """Exports from `start` to `close`, and once more at the end."""

    def __init__(self, metrics: Metrics, exporter: Exporter, resource: Resource, every_s: float) -> None:
        self._metrics, self._exporter, self._resource, self._every_s = metrics, exporter, resource, every_s
        self._began_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="perdure-otlp-metrics")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._export()
        await otlp.flush(self._exporter.shutdown)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._export()

    async def _export(self) -> None:
        """From a thread: a collector that does not answer holds up the export and nothing else. The exporter logs why it failed."""
        await self._metrics.refresh()
        data = metrics_data(self._metrics.registry.collect(), self._resource, self._began_ns, time.time_ns())
        await otlp.flush(lambda: self._exporter.export(data))


def metrics_data(families: Iterable[Metric], resource: Resource, began_ns: int, now_ns: int) -> MetricsData:
    metrics = [made for family in families if (made := _metric(family, began_ns, now_ns)) is not None]
    scope = ScopeMetrics(scope=InstrumentationScope("perdure"), metrics=metrics, schema_url="")
    return MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Metric, began_ns: int, now_ns: int) -> OtlpMetric | None:
    data: Any
    if family.type == "counter":
        points = [_number(s, began_ns, now_ns) for s in family.samples if s.name.endswith("_total")]
        data = Sum(data_points=points, aggregation_temporality=CUMULATIVE, is_monotonic=True)
    elif family.type == "histogram":
        data = Histogram(data_points=list(_histograms(family, began_ns, now_ns)), aggregation_temporality=CUMULATIVE)
    elif family.type == "gauge":
        data = Gauge(data_points=[_number(s, began_ns, now_ns) for s in family.samples])
    else:
        return None  # the description of the platform
    return OtlpMetric(name=family.name, description=family.documentation, unit="", data=data)


def _number(sample: Sample, began_ns: int, now_ns: int) -> NumberDataPoint:
    return NumberDataPoint(
        attributes=sample.labels, start_time_unix_nano=began_ns, time_unix_nano=now_ns, value=float(sample.value)
    )


def _histograms(family: Metric, began_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """One point for each set of labels; its buckets are differences of the cumulative ones."""
    points: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for s in family.samples:
        points.setdefault(tuple((k, v) for k, v in s.labels.items() if k != "le"), []).append(s)
    for labels, samples in points.items():
        buckets = [(float(s.labels["le"]), int(s.value)) for s in samples if s.name.endswith("_bucket")]
        counts = [count for _, count in buckets]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=counts[-1],
            sum=next((float(s.value) for s in samples if s.name.endswith("_sum")), 0.0),
            bucket_counts=[after - before for before, after in zip([0, *counts], counts, strict=False)],
            explicit_bounds=[bound for bound, _ in buckets[:-1]],
            min=None,  # type: ignore[arg-type]  # not known; the exporter leaves out what is None
            max=None,  # type: ignore[arg-type]
        )


def metrics_export(metrics: Metrics, service: str) -> MetricsExport:
    """One that exports as the environment says."""
    every_s = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or EVERY_S_DEFAULT * 1000) / 1000
    return MetricsExport(metrics, otlp.metric_exporter(), otlp.resource(service), every_s)
