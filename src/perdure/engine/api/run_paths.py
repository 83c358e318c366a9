"""The act on paths of runs.

Histories are read a few runs at a time and folded in a thread: a page of a thousand runs would hold up the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.core.api import run_paths as acts
from perdure.core.api.run_paths import FindPaths, PathGroup, PathPage, PathSample, UnreadableRun
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.limits import (
    PATH_HISTORY_BYTES_MAX,
    PATH_PAGE_BYTES_MAX,
    PATH_PAGE_RUNS_MAX,
    PATH_SAMPLES_MAX,
)
from perdure.core.run_paths import RunPath, path_of, spread
from perdure.engine.api.api import NamespaceApi, handles
from perdure.engine.api.ports import HistoryRows, PathRun
from perdure.wire.codec import decode_row

RUNS_AT_A_TIME: Final = 64
"""Histories that are in memory together."""


@handles(acts.PATHS)
async def find_paths(api: NamespaceApi, r: FindPaths) -> PathPage:
    if r.ended and len(r.workflows) != 1:
        raise InvalidInput("paths of ended runs are found for one workflow at a time: name one")
    reads = api.ports.reads
    runs, following = await reads.path_runs(api.ns, r, min(max(r.limit, 1), PATH_PAGE_RUNS_MAX))
    groups, size = PathGroups(), 0
    for at in range(0, len(runs), RUNS_AT_A_TIME):
        some = runs[at : at + RUNS_AT_A_TIME]
        histories = await reads.histories(api.ns, [run.run_id for run in some], PATH_HISTORY_BYTES_MAX)
        await asyncio.to_thread(groups.add, some, histories)
        size += sum(min(h.size, PATH_HISTORY_BYTES_MAX) for h in histories.values())
        if size > PATH_PAGE_BYTES_MAX and at + RUNS_AT_A_TIME < len(runs):
            following = some[-1].run_id
            break
    return PathPage(groups.groups(min(max(r.samples, 1), PATH_SAMPLES_MAX)), groups.unreadable, following)


class _Runs(msgspec.Struct):
    """Runs of one path."""

    run: PathRun
    path: RunPath
    count: int
    versions: dict[str, int]
    samples: list[PathSample]


class PathGroups:
    def __init__(self) -> None:
        self._found: dict[tuple[str, str, bool, bytes], _Runs] = {}
        self.unreadable: list[UnreadableRun] = []

    def add(self, runs: Sequence[PathRun], histories: Mapping[bytes, HistoryRows]) -> None:
        for run in runs:
            history = histories.get(run.run_id)
            if history is None:  # it has ended since, and retention took it
                continue
            try:
                self._add(run, history)
            except (PerdureError, msgspec.MsgspecError) as e:
                self.unreadable.append(UnreadableRun(run.run_id, run.workflow, str(e)))

    def _add(self, run: PathRun, history: HistoryRows) -> None:
        records = [record for row in history.rows for record in decode_row(*row)]
        path = path_of(records, run.waits, is_cut=history.size > PATH_HISTORY_BYTES_MAX)
        key = (run.workflow, run.kind, run.pinned, path.fingerprint)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _Runs(run, path, 0, {}, [])
        found.count += 1
        found.versions[run.version] = found.versions.get(run.version, 0) + 1
        found.samples.append(PathSample(run.run_id, path.values, path.detail))

    def groups(self, samples: int) -> list[PathGroup]:
        return [_group(runs, samples) for runs in self._found.values()]


def _group(runs: _Runs, samples: int) -> PathGroup:
    return PathGroup(
        workflow=runs.run.workflow,
        kind=runs.run.kind,
        fingerprint=runs.path.fingerprint,
        steps=runs.path.steps,
        runs=runs.count,
        versions=runs.versions,
        pending=runs.path.pending,
        waits=runs.run.waits,
        pinned=runs.run.pinned,
        samples=_chosen(runs.samples, samples),
    )


def _chosen(samples: Iterable[PathSample], count: int) -> tuple[PathSample, ...]:
    return tuple(spread(list(samples), count, lambda s: (s.values, s.detail)))
