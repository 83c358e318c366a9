"""What retention asks of the database and of the object store, step by step; tests/e2e/test_retention.py has both for real."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from perdure.core import ids
from perdure.core.errors import Unavailable
from perdure.core.retention import DAY_US, REST, Manifest
from perdure.engine.counters import Counters
from perdure.engine.retention_port import DayRange, NewJob, RetentionJob, Rules, StoredPart
from perdure.engine.services import retention as service
from perdure.engine.services.retention import EXPORT_OFF, TABLES, Retention
from perdure.engine.settings import EngineSettings
from perdure.exports.records import RUN_COLUMNS, RunRows

NOW_US = 1_000 * DAY_US
DAY = DayRange("2026-01-01", bytes(16), b"\xff" * 16, NOW_US - 200 * DAY_US)
OLDER = DayRange(REST, bytes(16), b"\xff" * 16, NOW_US - 300 * DAY_US)
RUNS = [ids.run_id(1_000 * n, 0, n) for n in range(1, 6)]


def ended_run(run_id: bytes) -> RunRows:
    row: dict[str, Any] = dict.fromkeys(RUN_COLUMNS)
    return RunRows(
        run=row
        | {
            "run_id": run_id,
            "ns": 1,
            "namespace": "default",
            "input_hash": None,
            "workflow": "w",
            "status": "success",
            "created_at": 1,
            "finished_at": 2,
            "epoch": 1,
            "events": 0,
            "head": b"",
        }
    )


class Store:
    """The database, as far as retention sees it. `acts` has what changed it, in order."""

    def __init__(self, *ranges: DayRange, expired: int = 0, kept: int = 0, days: float | None = 90) -> None:
        self._ranges, self._expired, self._kept, self._days = ranges, expired, kept, days
        self.address, self.acts = "", list[Any]()
        self.job: RetentionJob | None = None
        self.stored: list[StoredPart] = []
        self.is_lost = False
        self.removal, self.dropping, self.deleting = "ok", dict[str, list[str]](), [expired, 0]
        self.keys: list[bytes | None] = [None]
        self.looked_at: dict[str, int] = {}

    async def rules(self, default_days: float | None) -> Rules:
        return Rules({"/": self._days}, NOW_US, 0)

    async def ranges(self) -> list[DayRange]:
        return list(self._ranges)

    async def export_address(self) -> str:
        return self.address

    async def set_export_address(self, url: str) -> None:
        self.address = url

    async def looks(self) -> dict[str, int]:
        return self.looked_at

    async def looked(self, name: str, at_us: int) -> None:
        self.looked_at[name] = at_us

    async def count(self, of: DayRange, rules: Rules) -> tuple[int, int]:
        return self._expired, self._kept

    async def create(self, job: NewJob, default_days: float | None, lease_s: float) -> RetentionJob | None:
        self.acts.append(("create", job.action, job.expected))
        self.job = RetentionJob(
            id=bytes(15) + b"\x01",
            name=job.range.name,
            action=job.action,
            status="exporting",
            low=job.range.low,
            high=job.range.high,
            cutoff_us=NOW_US,
            rules="{}",
            url=job.url,
            format=job.format,
            epoch=1,
            exported_to=bytes(16),
            expected=job.expected,
            runs=0,
            events=0,
            tasks=0,
            bytes_=0,
            removed=0,
            kept=0,
            error=None,
            created_us=0,
            updated_us=0,
            finished_us=None,
        )
        return self.job

    async def is_busy(self) -> bool:
        return False

    async def claim(self, lease_s: float) -> RetentionJob | None:
        if self.job is None or self.job.status in ("done", "abandoned"):
            return None
        self.job = msgspec.structs.replace(self.job, epoch=self.job.epoch + 1)
        return self.job

    async def keep(self, job: RetentionJob, lease_s: float, error: str | None = None) -> bool:
        if error:
            self.acts.append(("failed", error))
        return not self.is_lost

    async def page(self, job: RetentionJob, after: bytes, limit: int) -> AsyncGenerator[list[RunRows]]:
        left = [run_id for run_id in RUNS[: self._expired] if run_id > after][:limit]
        if left:
            yield [ended_run(run_id) for run_id in left]

    async def add_part(self, job: RetentionJob, part: StoredPart, lease_s: float) -> bool:
        self.stored.append(part)
        return not self.is_lost

    async def parts(self, job: RetentionJob) -> list[StoredPart]:
        return list(self.stored)

    async def namespaces(self) -> dict[str, int]:
        return {"default": 1}

    async def find(self, id: bytes) -> RetentionJob:
        assert self.job is not None
        return self.job

    async def begin_removal(self, job: RetentionJob) -> str:
        self.acts.append("begin removal")
        return self.removal

    async def drop(self, job: RetentionJob, table: str) -> str:
        outcome = (self.dropping.get(table) or ["ok"]).pop(0)
        self.acts.append(("drop", table, outcome))
        if outcome == "locked":
            raise Unavailable("a lock was not granted")
        return outcome

    async def delete(self, job: RetentionJob, batch: int) -> int:
        return self.deleting.pop(0)

    async def free_keys(self, job: RetentionJob, after: bytes) -> bytes | None:
        return self.keys.pop(0)

    async def end(self, job: RetentionJob, status: Any, error: str | None = None) -> bool:
        assert self.job is not None
        self.job = msgspec.structs.replace(self.job, status=status, error=error)
        self.acts.append((status, error))
        return not self.is_lost

    async def delete_old_holds(self) -> None: ...


def retention(store: Store, **settings: Any) -> Retention:
    context: Any = SimpleNamespace(settings=EngineSettings(retention_share=1.0, **settings), counters=Counters())
    return Retention(context, store)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "DROP_PAUSE_S", 0.0)
    monkeypatch.setattr(service, "EXPORT_PAGE_RUNS", 2)
    monkeypatch.setattr(service, "EXPORT_PART_RUNS", 3)


async def test_a_day_goes_as_a_whole_and_its_keys_are_freed() -> None:
    store = Store(DAY, expired=3, kept=1)
    store.keys = [b"k" * 16, None]
    made = retention(store)
    assert await made.work_once()
    assert store.acts == [
        ("create", "drop", 3),
        "begin removal",
        *(("drop", table, "ok") for table in TABLES),
        ("done", None),
    ]
    assert store.looked_at == {DAY.name: NOW_US} and store.keys == []


async def test_a_day_of_which_many_are_kept_is_deleted_run_by_run() -> None:
    store = Store(DAY, expired=3, kept=100_000)
    assert await retention(store).work_once()
    assert store.acts == [("create", "delete", 3), "begin removal", ("done", None)] and store.deleting == []


async def test_runs_without_a_partition_are_deleted_one_by_one() -> None:
    store = Store(OLDER, expired=3)
    assert await retention(store).work_once()
    assert store.acts[0] == ("create", "delete", 3)


async def test_a_day_without_expired_runs_is_looked_through_once() -> None:
    store = Store(OLDER, DAY, expired=0, kept=5)
    made = retention(store)
    assert not await made.work_once()
    assert store.looked_at == {REST: NOW_US, DAY.name: NOW_US} and store.acts == []
    store._expired = 5  # not looked at again before a policy may have expired more
    assert not await made.work_once()


@pytest.mark.parametrize("days", [None, 365.0], ids=["for ever", "longer"])
async def test_nothing_goes_before_its_time(days: float | None) -> None:
    store = Store(DAY, expired=3, days=days)
    assert not await retention(store).work_once()
    assert store.acts == []


async def test_an_engine_that_does_not_know_the_address_of_exports_removes_nothing() -> None:
    store = Store(DAY, expired=3)
    store.address = "s3://archive/perdure"
    made = retention(store)
    await made.prepare()
    assert not await made.work_once() and store.acts == []
    off = retention(store, retention_export=EXPORT_OFF)
    await off.prepare()
    assert store.address == "" and await off.work_once()


async def test_the_manifest_is_written_before_anything_is_removed(tmp_path: Path) -> None:
    store = Store(DAY, expired=5)
    made = retention(store, retention_export=f"file://{tmp_path}")
    await made.prepare()
    assert await made.work_once()
    [path] = tmp_path.rglob("manifest.json")
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    assert (manifest.runs, [p.runs for p in manifest.parts]) == (5, [4, 1])
    assert [p.object for p in manifest.parts] == ["part-00001-1.jsonl.gz", "part-00002-1.jsonl.gz"]
    assert {p.name for p in path.parent.iterdir()} == {"manifest.json", *(p.object for p in manifest.parts)}
    assert store.acts[-1] == ("done", None)


async def test_a_policy_that_changes_before_the_removal_withdraws_the_export(tmp_path: Path) -> None:
    store = Store(DAY, expired=2)
    store.removal = "changed"
    made = retention(store, retention_export=f"file://{tmp_path}")
    await made.prepare()
    assert await made.work_once()
    assert store.acts[-1] == ("abandoned", "a policy was changed")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


async def test_an_address_that_changes_ends_the_job(tmp_path: Path) -> None:
    store = Store(DAY, expired=2)
    store.removal = "lost"
    assert await retention(store).work_once()
    made = retention(store, retention_export=f"file://{tmp_path}")
    await made.prepare()
    assert await made.work_once()
    assert store.acts[-1] == ("abandoned", "the address of exports was changed")


async def test_a_policy_that_changes_among_the_tables_of_a_day_ends_the_job() -> None:
    store = Store(DAY, expired=2)
    store.dropping["run"] = ["changed"]
    assert await retention(store).work_once()
    assert store.acts[-1] == ("abandoned", "a policy was changed")


@pytest.mark.parametrize(
    ("deleting", "end"),
    [
        ([-1], ("abandoned", "a policy was changed")),
        ([2, 0], ("done", None)),
        ([2, -1], ("done", "a policy was changed: some runs were exported and are still there")),
    ],
)
async def test_a_policy_that_changes_among_deleted_runs_is_noted(deleting: list[int], end: tuple[str, str]) -> None:
    store = Store(OLDER, expired=3)
    store.deleting = deleting
    assert await retention(store).work_once()
    assert store.acts[-1] == end


async def test_locks_are_waited_for_a_moment_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(DAY, expired=1)
    store.dropping["history"] = ["busy", "locked", "ok"]
    assert await retention(store).work_once()
    assert [act[2] for act in store.acts if act[:2] == ("drop", "history")] == ["busy", "locked", "ok"]
    monkeypatch.setattr(service, "DROP_TRIES", 2)
    again = Store(DAY, expired=1)
    again.dropping["history"] = ["busy", "busy"]
    with pytest.raises(Unavailable, match="the partition of history of 2026-01-01 is in use; it is dropped later"):
        await retention(again).work_once()
    assert again.acts[-1][0] == "failed"


async def test_a_job_that_another_engine_has_taken_up_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(OLDER, expired=3)
    store.is_lost = True
    assert await retention(store).work_once()
    assert "another engine has taken up the removal of ended runs of rest" in caplog.text
    assert not [act for act in store.acts if act[0] == "failed"]


async def test_nothing_is_urgent_while_an_engine_opens() -> None:
    store = Store(DAY, expired=1)
    made = retention(store)
    await made.poll_once()
    assert store.acts == []
    await made.poll_once()
    assert store.acts[-1] == ("done", None)
