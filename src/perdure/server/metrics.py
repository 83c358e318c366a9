"""/metrics: what an engine counts and measures, for Prometheus.

A scrape reads numbers in memory. Figures of the database (queue depths, sessions) are read with one bounded query each, at most every few
seconds however many scrapes there are. Labels are namespace and queue, never more than SERIES_MAX pairs, and names of tasks and workflows,
never more than METRIC_NAMES_MAX of each (named_metrics.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Final, Protocol

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from perdure.engine.counters import Counters, Histogram
from perdure.engine.engine import Engine
from perdure.engine.services.telemetry import WorkerRow
from perdure.server.named_metrics import by_name

log = logging.getLogger("perdure.server")

READ_EVERY_S: Final = 5.0
READ_S_MAX: Final = 2.0
"""A scrape leaves out the figures of the database when they take longer."""
SERIES_MAX: Final = 200
"""Pairs of namespace and queue that are shown one by one; the others are added up under OTHER."""
OTHER: Final = "(other)"

COUNTED: Final = {
    "commits": "Transactions this engine committed.",
    "commits_unconfirmed": "Commits whose answer was lost and that had succeeded.",
    "sessions_fenced": "Times this engine started over because its session had expired.",
    "records_refused": "Records the database refused; their runs were set aside.",
    "runs_started": "Runs created by this engine.",
    "runs_admitted": "Runs that waited for a limit of their workflow and were admitted.",
    "runs_claimed": "Runs taken over from the database: woken, or left by another engine.",
    "runs_ended": "Runs that ended in this engine, with any status.",
    "runs_failed": "Runs that ended in this engine by failing.",
    "runs_cancelled": "Runs that ended in this engine by being cancelled.",
    "runs_evicted": "Runs that left the memory of this engine: idle, or handed over.",
    "runs_stuck": "Times a run could not go on and was left for an operator.",
    "runs_ended_without_code": "Runs ended at their deadline or on a cancel request because their code could not run.",
    "activations": "Times workflow code was given new events.",
    "tasks_dispatched": "Attempts handed to a worker.",
    "tasks_ended": "Tasks that ended for good, with any status.",
    "tasks_failed": "Tasks that failed for good.",
    "tasks_retried": "Attempts that are followed by another one.",
    "tasks_deferred": "Attempts that gave their slot back and wait for a job outside.",
    "tasks_lost": "Attempts that were lost with their engine.",
    "tasks_start_deadline_missed": "Tasks that had not begun by their start deadline.",
    "tasks_spilled": "Tasks offered to other engines because the workers here were busy.",
    "tasks_claimed": "Tasks taken from the shared queue.",
    "late_reports": "Results of attempts that had already ended.",
    "sessions_reaped": "Expired sessions of other engines that this one cleaned up after.",
    "schedules_fired": "Runs that this engine started for schedules.",
    "schedules_missed": "Times of schedules that passed without a run.",
    "notifications_delivered": "Notifications that their receivers confirmed.",
    "notifications_failed": "Attempts to deliver a notification or to start a hook that failed.",
    "schedules_skipped": "Times of schedules that were skipped because an earlier run was active.",
    "polls": "Times this engine asked the database whether anything is due.",
    "notifications": "Notifications sent to wake other engines.",
    "log_chunks": "Chunks of task output that were stored.",
    "log_chunks_dropped": "Chunks of task output that were lost to a slow database.",
    "runs_exported": "Ended runs that this engine exported before their removal.",
    "runs_removed": "Ended runs that this engine removed because their retention was over.",
    "retention_failures": "Times that exporting or removing ended runs failed; it is repeated.",
    "telemetry_write_failures": "Writes of task output and progress that failed.",
}
"""Field of `Counters` -> help. The metric is the field after `perdure_`, with `_total`."""
MEASURED_ELSEWHERE: Final = frozenset({"commit_rows", "commit_us", "flow_slice_us_max", "loop_stall_us_max"})
"""Counters that a histogram's sum, or a gauge, shows already."""

US: Final = 1e-6
MEASURED: Final = {
    "schedule_to_start_us": ("perdure_task_schedule_to_start_seconds", "From schedule to first attempt.", US, 8, 32),
    "task_us": ("perdure_task_duration_seconds", "One attempt of a task, begin to end.", US, 8, 36),
    "commit_us": ("perdure_commit_duration_seconds", "One commit, as the engine waits for it.", US, 8, 26),
    "flow_slice_us": ("perdure_flow_slice_seconds", "CPU time of one slice of a flow's decision.", US, 8, 20),
    "loop_stall_us": (
        "perdure_loop_stall_seconds",
        "Delay of a timer of 0.1 s: how long the loop stood still.",
        US,
        8,
        26,
    ),
    "commit_rows": ("perdure_commit_batch_rows", "Rows written in one commit.", 1.0, 0, 14),
}
"""Field of `Measures` -> name, help, unit, and the smallest and largest bucket that is shown, in bits."""


class ObservedStore(Protocol):
    async def ping(self) -> None: ...
    async def live_sessions(self) -> int: ...
    async def namespaces(self) -> dict[int, str]: ...
    async def queue_depths(self) -> list[tuple[str, str, int, float]]: ...
    async def waits(self) -> list[tuple[int, str, str, int]]: ...


class Reading(msgspec.Struct, frozen=True):
    """One reading of the database's figures."""

    sessions: int
    namespaces: dict[int, str]
    depths: list[tuple[str, str, int, float]]
    """(namespace, queue, tasks that are due, age of the oldest in seconds)"""
    waits: list[tuple[int, str, str, int]]
    """(namespace, run or task, what for, how many)"""


class Metrics:
    """The registry of one engine. `render` answers a scrape."""

    def __init__(self, engine: Engine, store: ObservedStore) -> None:
        self._engine, self._store = engine, store
        self._reading: Reading | None = None
        self._read_at = float("-inf")
        self._asking = asyncio.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_EngineCollector(self))

    async def render(self, accept: str = "") -> tuple[bytes, str]:
        """The body and its content type, in the format the scraper prefers."""
        await self.refresh()
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    async def refresh(self) -> None:
        """Read the figures of the database. Scrapes that come together share one reading; a failed one leaves no stale figures."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now - self._read_at < READ_EVERY_S:
                return
            self._read_at = now
            try:
                async with asyncio.timeout(READ_S_MAX):
                    self._reading = Reading(
                        await self._store.live_sessions(),
                        await self._store.namespaces(),
                        await self._store.queue_depths(),
                        await self._store.waits(),
                    )
            except Exception as e:
                log.warning("metrics lack the figures of the database: %s", e or type(e).__name__)
                self._reading = None

    def families(self) -> Iterator[Metric]:
        yield from _counted(self._engine.counters)
        yield from _measured(self._engine.counters)
        yield from by_name(self._engine.names, self._reading.namespaces if self._reading else {})
        yield from self._gauges()
        if self._reading is not None:
            yield from _read_gauges(self._reading)
        workers = self._engine.telemetry.workers
        yield from _worker_gauges(workers, self._reading.namespaces if self._reading else {})

    def _gauges(self) -> Iterator[Metric]:
        e = self._engine
        info = GaugeMetricFamily("perdure_build_info", "The version that runs; always 1.", labels=["version"])
        info.add_metric([version("perdure")], 1)
        yield info
        for name, text, value in (
            ("perdure_database_up", "Whether the last reading from the database succeeded.", self._reading is not None),
            (
                "perdure_session_held",
                "Whether this engine holds a session, without which it writes nothing.",
                e.session.id != 0,
            ),
            ("perdure_runs_in_memory", "Runs this engine owns and holds in memory.", len(e.runs)),
            ("perdure_runs_in_memory_limit", "How many it may hold; more wait in the database.", e.settings.runs_max),
            (
                "perdure_loop_stall_max_seconds",
                "The longest that the event loop did not turn so far.",
                e.counters.loop_stall_us_max * US,
            ),
            (
                "perdure_flow_slice_max_seconds",
                "The longest slice of a flow's decision so far.",
                e.counters.flow_slice_us_max * US,
            ),
            ("perdure_tasks_in_flight", "Attempts that are with workers of this engine.", len(e.attempts.flights)),
            (
                "perdure_tasks_backlog",
                "Tasks that wait in this engine's memory for a free slot.",
                e.dispatcher.backlog.size,
            ),
            ("perdure_log_chunks_waiting", "Chunks of task output not stored yet.", e.task_logs.waiting),
        ):
            yield GaugeMetricFamily(name, text, value=value)


class _EngineCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


def _counted(counters: Counters) -> Iterator[Metric]:
    for field, text in COUNTED.items():
        yield CounterMetricFamily(f"perdure_{field}", text, value=getattr(counters, field))


def _measured(counters: Counters) -> Iterator[Metric]:
    for field, (name, text, unit, lowest, highest) in MEASURED.items():
        histogram: Histogram = getattr(counters.measures, field)
        buckets = [(f"{bound * unit:.9g}", float(n)) for bound, n in histogram.cumulative(lowest, highest)]
        buckets.append(("+Inf", float(histogram.count)))
        yield HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.total * unit)


def _read_gauges(reading: Reading) -> Iterator[Metric]:
    yield GaugeMetricFamily("perdure_engines", "Engines with a live session on this database.", value=reading.sessions)
    depths: dict[tuple[str, str], list[float]] = {}
    for namespace, queue, due, oldest_s in reading.depths:
        key = (namespace, queue) if len(depths) < SERIES_MAX else (OTHER, OTHER)
        found = depths.setdefault(key, [0.0, 0.0])
        found[0] += due
        found[1] = max(found[1], oldest_s)
    waiting = GaugeMetricFamily(
        "perdure_queue_depth",
        "Tasks in the shared queue that are due and have no worker.",
        labels=["namespace", "queue"],
    )
    oldest = GaugeMetricFamily(
        "perdure_queue_oldest_age_seconds", "How long the oldest of them has been due.", labels=["namespace", "queue"]
    )
    for key, (count, age_s) in depths.items():
        waiting.add_metric(key, count)
        oldest.add_metric(key, age_s)
    yield waiting
    yield oldest
    waits = GaugeMetricFamily(
        "perdure_waiting",
        "Runs, and tasks in flow-control groups, that wait, by reason; each counted up to 10,000.",
        labels=["namespace", "what", "reason"],
    )
    for ns, what, reason, count in reading.waits:
        waits.add_metric([reading.namespaces.get(ns, str(ns)), what, reason], count)
    yield waits


def _worker_gauges(workers: Iterable[WorkerRow], names: dict[int, str]) -> Iterator[Metric]:
    """A worker that serves several queues counts in each: what could run a task of that queue."""
    totals: dict[tuple[str, str], list[int]] = {}
    for w in workers:
        for queue in w.queues:
            key = (names.get(w.ns, str(w.ns)), queue)
            if key not in totals and len(totals) >= SERIES_MAX:
                key = (OTHER, OTHER)
            found = totals.setdefault(key, [0, 0, 0])
            found[0] += 1
            found[1] += w.slots
            found[2] += w.slots_used
    for at, (name, text) in enumerate(
        (
            ("perdure_workers", "Workers connected to this engine that serve a queue."),
            ("perdure_worker_slots", "Their slots."),
            ("perdure_worker_slots_used", "Their slots that are taken, by tasks of any queue."),
        )
    ):
        gauge = GaugeMetricFamily(name, text, labels=["namespace", "queue"])
        for key, values in totals.items():
            gauge.add_metric(key, values[at])
        yield gauge
