"""Metrics by the names of tasks and workflows. The engine bounds how many names there are (engine/name_counts.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from perdure.engine.name_counts import OTHER, Counted, Name, NameCounts

BITS_SHOWN: Final = (10, 13, 16, 19, 22, 25, 29, 34)
"""Buckets of durations in bits of microseconds: 1 ms, 8 ms, 65 ms, 0.5 s, 4 s, 34 s, 9 min, 5 h. Few, because every name has them."""


def by_name(names: NameCounts, namespaces: Mapping[int, str]) -> Iterator[Metric]:
    tasks, workflows = names.tasks.found, names.workflows.found
    yield _ends("perdure_task_attempts", "Attempts that ended here, by task.", tasks, namespaces, "task", "outcome")
    yield _durations("perdure_task_attempt_duration_seconds", "One attempt, by task.", tasks, namespaces, "task")
    started = CounterMetricFamily(
        "perdure_workflow_runs_started", "Runs that this engine created, by workflow.", labels=["namespace", "workflow"]
    )
    for name, counted in workflows.items():
        started.add_metric(_labels(name, namespaces), counted.started)
    yield started
    yield _ends("perdure_workflow_runs_ended", "Runs that ended here.", workflows, namespaces, "workflow", "status")
    yield _durations(
        "perdure_workflow_run_duration_seconds", "From start to end of a run.", workflows, namespaces, "workflow"
    )


def _labels(name: Name, namespaces: Mapping[int, str]) -> list[str]:
    return [OTHER[1], OTHER[1]] if name == OTHER else [namespaces.get(name[0], str(name[0])), name[1]]


def _ends(
    metric: str, text: str, found: Mapping[Name, Counted], namespaces: Mapping[int, str], label: str, word: str
) -> Metric:
    family = CounterMetricFamily(metric, text, labels=["namespace", label, word])
    for name, counted in found.items():
        for end, count in counted.ends.items():
            family.add_metric([*_labels(name, namespaces), end], count)
    return family


def _durations(
    metric: str, text: str, found: Mapping[Name, Counted], namespaces: Mapping[int, str], label: str
) -> Metric:
    family = HistogramMetricFamily(metric, text, labels=["namespace", label])
    for name, counted in found.items():
        below = dict(counted.took_us.cumulative(0, BITS_SHOWN[-1]))
        buckets = [(f"{((1 << bits) - 1) * 1e-6:.9g}", float(below[(1 << bits) - 1])) for bits in BITS_SHOWN]
        buckets.append(("+Inf", float(counted.took_us.count)))
        family.add_metric(_labels(name, namespaces), buckets, counted.took_us.total * 1e-6)
    return family
