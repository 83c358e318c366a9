"""Removes ended runs that are past their policy, after it has exported them.

    look through days --> job --> export parts --> manifest, read back --> drop the day, or delete run by run --> done

Laws:

1. A job has a frozen set of runs: those that its rules call expired at its cutoff. Runs end after the cutoff, so the set cannot grow, and
   an engine that takes the job up after a crash continues behind the last part.
2. One engine at a time is at work on the job. Each step checks the job's epoch in its own transaction, and no two epochs write the same
   object: an engine that was halted and comes back changes nothing.
3. Nothing is removed before the manifest is there and every object was read back with its checksum.
4. A change of a policy before the first removal ends the job and withdraws its export; the next job follows the new policy.
5. The work is paced: after each piece the engine rests, so that it spends no more than `retention_share` of its time on this.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from time import monotonic
from typing import Final

from perdure.core import ids
from perdure.core.errors import Unavailable
from perdure.core.retention import (
    REST,
    ExportPart,
    Manifest,
    folder_of,
    part_name,
    passed_steps,
    shortest_days,
)
from perdure.core.retention_limits import (
    EXPORT_PAGE_RUNS,
    EXPORT_PART_BYTES,
    EXPORT_PART_RUNS,
    RETENTION_CARRIED_RUNS_MAX,
    RETENTION_DELETED_RUNS,
    RETENTION_PAUSE_S_MAX,
)
from perdure.core.version import VERSION
from perdure.engine.context import EngineContext
from perdure.engine.retention_port import DayRange, NewJob, RetentionJob, RetentionStore, Rules, StoredPart
from perdure.engine.services.service import Service
from perdure.exports.archive import Archive
from perdure.exports.writers import PartWriter, format_of

log = logging.getLogger("perdure.engine")

TABLES: Final = ("run", "history", "task", "task_attempt", "node_count", "run_state", "task_log", "payload_use")
"""In the order in which a day is dropped: `run` decides which runs are kept."""
REST_LOOK_US: Final = 3_600_000_000
"""Between two looks through runs whose day has no partition any more."""
LEASES: Final = 4
"""The lease of a job, in leases of an engine: an upload may take a while."""
DROP_TRIES: Final = 60
DROP_PAUSE_S: Final = 0.5
SHARE_MIN: Final = 0.01
EXPORT_OFF: Final = "off"


class RetentionJobLost(Unavailable):
    """Another engine has taken up the retention job."""


class Retention(Service):
    name = "retention of ended runs"
    poll_s = 60.0
    failed_pause_s_max = 60.0

    def __init__(self, context: EngineContext, store: RetentionStore) -> None:
        super().__init__()
        settings = context.settings
        self._store, self._counters, self._default_days = store, context.counters, settings.retention_days
        export = settings.retention_export.strip()
        self._is_off, self._archive = export == EXPORT_OFF, None
        if export and not self._is_off:
            self._archive = Archive(export)
        self._format = format_of(settings.retention_format)
        self._share = min(max(settings.retention_share, SHARE_MIN), 1.0)
        self._lease_s = settings.lease_s * LEASES
        self._first = True

    @property
    def _url(self) -> str:
        return "" if self._archive is None else self._archive.url

    async def prepare(self) -> None:
        """Note in the database where this engine exports to: engines that do not know the address remove nothing."""
        if self._archive is not None or self._is_off:
            await self._store.set_export_address(self._url)

    async def poll_once(self) -> None:
        if self._first:  # nothing is urgent while an engine opens
            self._first = False
            return
        while await self.work_once():
            pass

    async def work_once(self) -> bool:
        """Do one job, if there is one."""
        if await self._store.export_address() != self._url:
            return False
        job = await self._store.claim(self._lease_s) or await self._next()
        if job is None:
            return False
        try:
            await self._work(job)
        except RetentionJobLost as e:
            log.warning("%s", e)
        except Exception as e:
            self._counters.retention_failures += 1
            await self._store.keep(job, 0.0, error=f"{type(e).__name__}: {e}"[:1_000])
            raise
        return True

    # what there is to do

    async def _next(self) -> RetentionJob | None:
        rules = await self._store.rules(self._default_days)
        if shortest_days(rules.days) is None or await self._store.is_busy():
            return None
        looks = await self._store.looks()
        for one in await self._store.ranges():
            if not _is_due(one, rules, looks.get(one.name, -1)):
                continue
            expired, kept = await self._store.count(one, rules)
            new = self._new_job(one, rules, expired, kept)
            if new is not None:
                # None where another engine was faster: it looks through what is left, so nothing is noted here.
                return await self._store.create(new, self._default_days, self._lease_s)
            await self._store.looked(one.name, rules.clock_us)
        return None

    def _new_job(self, of: DayRange, rules: Rules, expired: int, kept: int) -> NewJob | None:
        is_dropped = of.name != REST and kept <= RETENTION_CARRIED_RUNS_MAX and (expired > 0 or kept == 0)
        if not expired and not is_dropped:
            return None
        return NewJob(
            range=of,
            action="drop" if is_dropped else "delete",
            rules=rules,
            expected=expired,
            url=self._url,
            format=self._format,
        )

    # a job

    async def _work(self, job: RetentionJob) -> None:
        if job.status == "exporting":
            if (job.url or "") != self._url:
                await self._abandon(job, "the address of exports was changed")
                return
            if self._archive is not None:
                await self._export(job, self._archive)
            outcome = await self._store.begin_removal(job)
            if outcome == "changed":
                await self._abandon(job, "a policy was changed")
                return
            _check(outcome, job)
        removed = await (self._drop(job) if job.action == "drop" else self._delete(job))
        if removed is None:
            return
        await self._free_keys(job)
        await self._store.delete_old_holds()
        job = await self._store.find(job.id)
        await self._store.looked(job.name, job.cutoff_us)
        if not await self._store.end(job, "done", removed or None):
            raise _lost(job)
        self._counters.runs_removed += job.removed
        log.info(
            "removed %d ended runs of %s (%s)%s",
            job.removed,
            job.name,
            job.action,
            f", exported to {job.url}" if job.url else "",
        )

    async def _abandon(self, job: RetentionJob, why: str) -> None:
        """Nothing was removed, so nothing of it is exported."""
        if self._archive is not None and self._archive.url == job.url:
            parts = await self._store.parts(job)
            await self._archive.withdraw(_folder(job), [p.part.object for p in parts])
        if not await self._store.end(job, "abandoned", why):
            raise _lost(job)
        log.info("the removal of ended runs of %s begins again: %s", job.name, why)

    # export

    async def _export(self, job: RetentionJob, archive: Archive) -> None:
        parts = await self._store.parts(job)
        after = job.exported_to
        while True:
            writer = PartWriter(format_of(job.format or self._format))
            after, is_over = await self._fill(job, writer, after)
            if writer.runs:
                part = await self._upload(job, archive, writer, len(parts) + 1)
                parts.append(part)
            if is_over:
                break
        if parts:
            await archive.write_manifest(_folder(job), await self._manifest(job, [p.part for p in parts]))
        if not await self._store.keep(job, self._lease_s):
            raise _lost(job)

    async def _fill(self, job: RetentionJob, writer: PartWriter, after: bytes) -> tuple[bytes, bool]:
        """Add runs until the part is full. Where it ended, and whether there are no more."""
        size, renewed_s = 0, monotonic()
        while writer.runs < EXPORT_PART_RUNS and size < EXPORT_PART_BYTES:
            began_s, last = monotonic(), after
            async with aclosing(self._store.page(job, after, EXPORT_PAGE_RUNS)) as page:
                async for runs in page:
                    size = await asyncio.to_thread(writer.add, runs)
                    after = runs[-1].run_id
            if after == last:
                return after, True
            await self._rest(monotonic() - began_s)
            if monotonic() - renewed_s > self._lease_s / LEASES:
                renewed_s = monotonic()
                if not await self._store.keep(job, self._lease_s):
                    raise _lost(job)
        return after, False

    async def _upload(self, job: RetentionJob, archive: Archive, writer: PartWriter, n: int) -> StoredPart:
        began_s = monotonic()
        data, digest = await asyncio.to_thread(writer.finish)
        name = part_name(n, job.epoch, job.format or self._format)
        await archive.put(f"{_folder(job)}/{name}", data)
        part = StoredPart(
            n,
            ExportPart(
                object=name,
                first=ids.text(writer.first),
                last=ids.text(writer.last),
                runs=writer.runs,
                events=writer.events,
                tasks=writer.tasks,
                bytes=len(data),
                sha256=digest.hex(),
            ),
        )
        if not await self._store.add_part(job, part, self._lease_s):
            raise _lost(job)
        self._counters.runs_exported += writer.runs
        log.info("exported %d runs of %s to %s/%s/%s", writer.runs, job.name, archive.url, _folder(job), name)
        await self._rest(monotonic() - began_s)
        return part

    async def _manifest(self, job: RetentionJob, parts: list[ExportPart]) -> Manifest:
        return Manifest(
            job=ids.text(job.id),
            name=job.name,
            format=format_of(job.format or self._format),
            version=VERSION,
            cutoff_us=job.cutoff_us,
            namespaces=await self._store.namespaces(),
            runs=sum(p.runs for p in parts),
            events=sum(p.events for p in parts),
            tasks=sum(p.tasks for p in parts),
            bytes=sum(p.bytes for p in parts),
            parts=parts,
        )

    # removal

    async def _drop(self, job: RetentionJob) -> str | None:
        """None: the job was abandoned. Else what is to be noted about it, which may be nothing."""
        for table in TABLES:
            outcome = await self._drop_table(job, table)
            if outcome == "changed":
                await self._abandon(job, "a policy was changed")
                return None
            _check(outcome, job)
        return ""

    async def _drop_table(self, job: RetentionJob, table: str) -> str:
        """Locks that others hold are waited for, a moment at a time, so that no commit queues up behind the wait."""
        for attempt in range(1, DROP_TRIES + 1):
            try:
                outcome = await self._store.drop(job, table)
            except Unavailable:
                if attempt == DROP_TRIES:
                    raise
                outcome = "busy"
            if outcome != "busy":
                return outcome
            if not await self._store.keep(job, self._lease_s):
                raise _lost(job)
            await asyncio.sleep(DROP_PAUSE_S)
        raise Unavailable(f"the partition of {table} of {job.name} is in use; it is dropped later")

    async def _delete(self, job: RetentionJob) -> str | None:
        deleted = job.removed
        while True:
            began_s = monotonic()
            n = await self._store.delete(job, RETENTION_DELETED_RUNS)
            if n == 0:
                return ""
            if n == -1 and not deleted:
                await self._abandon(job, "a policy was changed")
                return None
            if n == -1:
                return "a policy was changed: some runs were exported and are still there"
            if n < 0 or not await self._store.keep(job, self._lease_s):
                raise _lost(job)
            deleted += n
            await self._rest(monotonic() - began_s)

    async def _free_keys(self, job: RetentionJob) -> None:
        after: bytes | None = job.low
        while after is not None:
            began_s = monotonic()
            after = await self._store.free_keys(job, after)
            await self._rest(monotonic() - began_s)

    async def _rest(self, took_s: float) -> None:
        pause_s = took_s * (1 - self._share) / self._share
        await asyncio.sleep(min(pause_s, RETENTION_PAUSE_S_MAX))


def _is_due(of: DayRange, rules: Rules, looked_us: int) -> bool:
    """Whether runs of it may have expired since it was last looked through."""
    if of.name == REST:
        return looked_us < max(rules.clock_us - REST_LOOK_US, rules.changed_us)
    steps = passed_steps(rules.days, of.ended_us, rules.clock_us)
    return bool(steps) and looked_us < max(steps[-1], rules.changed_us)


def _folder(job: RetentionJob) -> str:
    return folder_of(job.name, ids.text(job.id))


def _check(outcome: str, job: RetentionJob) -> None:
    if outcome == "lost":
        raise _lost(job)


def _lost(job: RetentionJob) -> RetentionJobLost:
    return RetentionJobLost(f"another engine has taken up the removal of ended runs of {job.name}")
