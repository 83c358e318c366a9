"""Numbers of runs: histograms, statistics of a workflow, and what is going on in a namespace."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

import msgspec

from perdure.core.api import statistics as acts
from perdure.core.api.statistics import (
    DurationList,
    GetCounts,
    GetHistogram,
    GetStats,
    ListDurations,
    NamespaceCounts,
    RunHistogram,
    VersionStart,
    WorkflowStats,
)
from perdure.core.errors import InvalidInput
from perdure.core.limits import STATS_DAYS_MAX, VERSIONS_SHOWN_MAX
from perdure.core.run_counts import DAY_S, bins_of, days_until
from perdure.engine.api.api import Api, NamespaceApi, handles
from perdure.engine.api.starts import workflow_of
from perdure.engine.counters import Histogram

DURATION_DAYS: Final = 7


@handles(acts.HISTOGRAM)
async def histogram(api: NamespaceApi, r: GetHistogram) -> RunHistogram:
    now_us = api.engine.clock.now_us()
    bins = bins_of(r.since_us, now_us if r.until_us is None else r.until_us, r.bins, now_us)
    return await api.ports.reads.histogram(api.ns, r.workflow, bins)


@handles(acts.STATS)
async def stats(api: NamespaceApi, r: GetStats) -> WorkflowStats:
    if not 1 <= r.days <= STATS_DAYS_MAX:
        raise InvalidInput(f"days is {r.days}: give 1 to STATS_DAYS_MAX={STATS_DAYS_MAX}")
    workflow = await workflow_of(api, r.workflow)
    found = await api.ports.reads.workflow_stats(api.ns, workflow.name, days_until(api.engine.clock.now_us(), r.days))
    versions = await api.ports.reads.versions(api.ns, workflow.name, VERSIONS_SHOWN_MAX)
    return msgspec.structs.replace(
        found, versions=[VersionStart(version.version, version.registered_us) for version in versions]
    )


@handles(acts.DURATIONS)
async def durations(api: NamespaceApi, r: ListDurations) -> DurationList:
    since_us = api.engine.clock.now_us() - DURATION_DAYS * DAY_S * 1_000_000
    return DurationList(await api.ports.reads.durations(api.ns, since_us))


@handles(acts.COUNTS)
async def counts(api: NamespaceApi, r: GetCounts) -> NamespaceCounts:
    return await counts_of(api.api, api.ns)


async def counts_of(api: Api, ns: int) -> NamespaceCounts:
    commit_us = median(api.engine.counters.measures.commit_us)
    return msgspec.structs.replace(
        await api.ports.reads.counts(ns), commit_p50_ms=None if commit_us is None else round(commit_us / 1000, 1)
    )


def median(measured: Histogram) -> float | None:
    """Within its bucket, as if the values were spread evenly there."""
    half = measured.count / 2
    if not half:
        return None
    bits = next(i for i, below in enumerate(accumulate(measured.counts)) if below >= half)
    low = 1 << bits - 1 if bits else 0
    return low + low * (half - sum(measured.counts[:bits])) / measured.counts[bits]
