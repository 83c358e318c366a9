"""What the server has: paths of runs in flight, histories of some of them, and what workers serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from perdure.core import payload_fields, payloads
from perdure.core.durations import us_of
from perdure.core.errors import PayloadTooLarge
from perdure.core.events import Recorded
from perdure.core.limits import PATH_PAGE_RUNS_MAX, PATHS_MAX
from perdure.core.run_paths import spread
from perdure.programs.http_client import HttpApi, segment
from perdure.wire.codec import event_from_fields

NESTING_MAX: Final = 32
"""Stored values within stored values."""
STORED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of stored values that one history may refer to."""
HISTORY_PAGE: Final = 500

PathKey = tuple[str, str, bool, bool]
"""(workflow, fingerprint, have its runs ended, are they pinned)"""
Sample = tuple[str, int, int]
"""(run, class of its values, checksum of its values)"""


class Path(msgspec.Struct):
    """A path, as far as it is known from the pages read so far."""

    workflow: str
    kind: str
    fingerprint: str
    steps: str
    runs: int
    pending: set[str]
    waits: tuple[str, ...]
    samples: list[Sample]
    ended: bool = False
    pinned: bool = False
    versions: dict[str, int] = {}


class Collected(msgspec.Struct):
    paths: dict[PathKey, Path] = msgspec.field(default_factory=dict[PathKey, Path])
    runs: int = 0
    left_out: int = 0
    """Runs of paths beyond PATHS_MAX."""
    unreadable: list[dict[str, Any]] = msgspec.field(default_factory=list[dict[str, Any]])


class CheckScope(msgspec.Struct, frozen=True, kw_only=True):
    workflows: tuple[str, ...] = ()
    """Only these; empty: all."""
    since: str | None = None
    samples: int
    finished: int = 0
    """Ended runs to look at, of each workflow."""
    pinned: bool = False
    """Also replay runs that are pinned to their version, as if they were moved."""


def collect(api: HttpApi, wanted: CheckScope, known: Iterable[str], progress: Callable[[str], None]) -> Collected:
    """Walk the active runs, and the newest ended ones of `known` workflows."""
    found = Collected()
    names = [("workflow", name) for name in wanted.workflows]
    _walk(api, wanted, [*names, ("since", wanted.since)], found, None, progress)
    if wanted.finished:
        for name in known:
            if not wanted.workflows or name in wanted.workflows:
                params = [("workflow", name), ("since", wanted.since), ("ended", "true")]
                _walk(api, wanted, params, found, wanted.finished, progress)
    return found


def _walk(
    api: HttpApi,
    wanted: CheckScope,
    params: list[tuple[str, str | None]],
    found: Collected,
    limit: int | None,
    progress: Callable[[str], None],
) -> None:
    cursor, seen = None, 0
    while limit is None or seen < limit:
        size = PATH_PAGE_RUNS_MAX if limit is None else min(PATH_PAGE_RUNS_MAX, limit - seen)
        more = [("limit", size), ("samples", wanted.samples), ("cursor", cursor)]
        page = api.get("/run-paths", [*params, *more])
        for item in page["items"]:
            seen += item["runs"]
            _add(found, item, wanted.samples, ended=limit is not None)
        seen += len(page["unreadable"])
        found.unreadable += page["unreadable"]
        if limit is None:
            found.runs = seen
        progress(f"{found.runs:,} runs in flight, {len(found.paths):,} paths")
        cursor = page["next"]
        if cursor is None:
            return


def _add(found: Collected, item: dict[str, Any], samples: int, *, ended: bool) -> None:
    key = (item["workflow"], item["fingerprint"], ended, item["pinned"])
    path = found.paths.get(key)
    if path is None:
        if len(found.paths) >= PATHS_MAX:
            found.left_out += item["runs"]
            return
        path = found.paths[key] = Path(
            item["workflow"],
            item["kind"],
            item["fingerprint"],
            item["steps"],
            0,
            set(),
            tuple(item["waits"]),
            [],
            ended,
            item["pinned"],
        )
    path.runs += item["runs"]
    path.versions = {v: path.versions.get(v, 0) + item["versions"].get(v, 0) for v in path.versions | item["versions"]}
    path.pending |= set(item["pending"])
    given = [(s["id"], s["values"], s["detail"]) for s in item["samples"]]
    path.samples = spread([*path.samples, *given], samples, lambda s: (s[1], s[2]))


def history_of(api: HttpApi, run: str) -> list[Recorded]:
    """The whole history, byte for byte, with its stored values in it."""
    items = api.items(f"/runs/{segment(run)}/history", [("exact", True)])
    records = [
        Recorded(i["seq"], us_of(datetime.fromisoformat(i["at"])), event_from_fields(i["type"], i["data"]))
        for i in items
    ]
    return _resolved(api, run, records)


def waits_of(api: HttpApi, run: str) -> tuple[str, ...]:
    """Signals and updates that the run waits for now, as `signal:name`."""
    waiting = api.get(f"/runs/{segment(run)}").get("waiting") or {}
    return tuple(f"{w['on']}:{w['name']}" for w in waiting.get("waits", ()) if w["on"] in ("signal", "update"))


def _resolved(api: HttpApi, run: str, records: list[Recorded]) -> list[Recorded]:
    size = sum(v.size for r in records for p in payload_fields.payloads_of(r.event) for v in payloads.values_of(p))
    if not size:
        return records
    if size > STORED_BYTES_MAX:
        raise PayloadTooLarge(
            f"the history of run {run} refers to stored values of {size:,} bytes, over the limit STORED_BYTES_MAX={STORED_BYTES_MAX:,}"
        )
    contents: dict[bytes, bytes] = {}

    def whole(payload: bytes) -> bytes:
        for _ in range(NESTING_MAX):
            wanted = payloads.values_of(payload)
            if not wanted:
                break
            for reference in wanted:
                if reference.sha256 not in contents:
                    with api.download(f"/payloads/{reference.sha256.hex()}") as pieces:
                        contents[reference.sha256] = b"".join(pieces)
            payload = payloads.spliced(payload, {r.sha256: contents[r.sha256] for r in wanted})
        return payload

    return [Recorded(r.seq, r.at_us, payload_fields.replaced(r.event, whole)) for r in records]


class Served(msgspec.Struct, frozen=True):
    """What connected workers serve, apart from those that the deploy replaces."""

    tasks: frozenset[str]
    workflows: frozenset[str]
    replaced_tasks: frozenset[str]
    """Tasks of workers that the deploy replaces."""


def served(api: HttpApi, workflows: Iterable[str], tasks: Iterable[str]) -> Served:
    """A worker that serves a workflow or a task of the targets is taken for one that the deploy replaces."""
    mine, my_tasks = set(workflows), set(tasks)
    others: list[dict[str, Any]] = []
    replaced: list[dict[str, Any]] = []
    for worker in api.items("/workers"):
        own = mine & set(worker["workflows"]) or my_tasks & set(worker["tasks"])
        (replaced if own else others).append(worker)
    return Served(
        frozenset(t for w in others for t in w["tasks"]),
        frozenset(n for w in others for n in w["workflows"]),
        frozenset(t for w in replaced for t in w["tasks"]),
    )
