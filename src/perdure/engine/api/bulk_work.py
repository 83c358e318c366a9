"""Bulk jobs, carried out by one engine at a time.

    start -> `pending` --find its runs, page by page--> `running` --act on them, page by page--> `success`

Laws:

1. The runs of a job are those that match when it looks, up to the moment of its creation. Each is looked at again right before the job
   acts on it, and skipped if it does not match any more.
2. A job acts on each run in the way of the act for one run, and writes the outcome of each. The counts of a job are those of its rows.
3. Every write names the session of its engine, and does nothing when another engine has the job. The page that a killed engine was at is
   done again: a cancel or terminate message, or a signal, has a key and is taken once; for another act, a run that refuses then counts as done before.
4. Jobs take turns, so that a large one does not delay others.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from time import monotonic
from typing import Final

from perdure.core import ids
from perdure.core.access import Principal, Role
from perdure.core.api.bulk_jobs import BulkJob, BulkRun
from perdure.core.api.messages import SendSignal
from perdure.core.api.runs import ChangeRun, PauseRun, RunItem
from perdure.core.bulk_jobs import nothing_to_do
from perdure.core.errors import Conflict, InvalidInput, NotFound, PerdureError, RunFinished, Unavailable, clip
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import BULK_JOBS_KEPT_S, BULK_RUNS_MAX
from perdure.core.run_query import And, Node, Op, Term, parse
from perdure.engine.api import messages, runs
from perdure.engine.api.api import Api, Caller, NamespaceApi
from perdure.engine.api.ports import ClaimedJob, TakenRun
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

PAGE_RUNS: Final = 1_000
"""Runs found in one transaction."""
ACTED_AT_ONCE: Final = 100
"""Runs that a job acts on side by side."""
TURN_S: Final = 1.0
"""After so long another job has its turn."""
TRIES_MAX: Final = 5
"""Times that a run is tried while it cannot be reached."""
UNREACHED_PAUSE_S: Final = 1.0
TRIM_EVERY_S: Final = 600.0
TRIM_JOBS: Final = 10


class BulkWork(Service):
    name = "carrying out bulk jobs"
    poll_s = 1.0

    def __init__(self, api: Api) -> None:
        super().__init__()
        self._api, self._jobs, self._session = api, api.ports.bulk_jobs, api.engine.session
        self._trim_at_s = monotonic() + TRIM_EVERY_S * random.random()
        api.engine.events.bulk_job_started.subscribe(self.wake)

    async def poll_once(self) -> None:
        while (session := self._session.id) and (claimed := await self._jobs.claim(session)) is not None:
            await self._turn(session, claimed)
        if monotonic() >= self._trim_at_s:
            self._trim_at_s = monotonic() + TRIM_EVERY_S * random.uniform(0.75, 1.25)
            await self._jobs.trim(BULK_JOBS_KEPT_S, TRIM_JOBS)

    async def _turn(self, session: int, claimed: ClaimedJob) -> None:
        """Work on a job for a while."""
        job = claimed.job
        try:
            query = _query(job)
        except InvalidInput as error:  # written by another version
            await self._jobs.end(session, job.id, str(error))
            return
        if job.status == "pending":
            await self._find(session, claimed, query)
            return
        until = monotonic() + TURN_S
        api = self._of(claimed)
        while monotonic() < until:
            taken = await self._jobs.take(session, job.id, ACTED_AT_ONCE)
            if not taken:
                await self._jobs.end(session, job.id, None)
                return
            outcomes = await _act(api, job, query, taken)
            if not await self._jobs.record(session, job.id, outcomes):
                return
            if len(outcomes) < len(taken):
                await asyncio.sleep(UNREACHED_PAUSE_S)

    async def _find(self, session: int, claimed: ClaimedJob, query: Node) -> None:
        """The next page of runs that match."""
        job = claimed.job
        page = await self._api.ports.reads.runs(claimed.ns, query, claimed.below, PAGE_RUNS)
        if job.matched + len(page.items) > BULK_RUNS_MAX:
            error = f"more than BULK_RUNS_MAX={BULK_RUNS_MAX:,} runs match; nothing was done. Narrow the query."
            await self._jobs.end(session, job.id, error)
            return
        found = [(run.run_id, nothing_to_do(job.action, run)) for run in page.items]
        await self._jobs.add(session, claimed, found, page.next)

    def _of(self, claimed: ClaimedJob) -> NamespaceApi:
        """The API as the author of the job may use it: that was checked when the job was started."""
        author = Principal(subject=claimed.job.created_by, role=Role.OPERATOR)
        return NamespaceApi(self._api, claimed.ns, Caller(author, "", "sdk"))


def _query(job: BulkJob) -> Node:
    # The ids of runs and of the job have the time of the engine, which may be ahead of the database's by a moment.
    latest_us = max(job.created_us, ids.unix_ms_of(job.id) * 1000 + 999)
    return And((parse(job.query, job.created_us), Term("created", Op.LESS_OR_EQUAL, latest_us)))


async def _act(api: NamespaceApi, job: BulkJob, query: Node, taken: Sequence[TakenRun]) -> list[BulkRun]:
    """The outcomes of these runs; a run that could not be reached has none and comes again."""
    named = [run.run_id for run in taken]
    matching = {item.run_id: item for item in await api.ports.reads.matching(api.ns, query, named)}
    sent = await _sent(api, job, [run.run_id for run in taken if run.tries > 1]) if _is_message(job) else set[bytes]()
    roots = await api.ports.dead_letters.roots(api.ns, list(matching)) if job.action == "retry" else {}

    async def one(run: TakenRun) -> BulkRun | None:
        if run.run_id in sent:
            return BulkRun(run.run_id, "done")
        why = _refusal(job, matching.get(run.run_id), roots.get(run.run_id, run.run_id))
        return await _acted(api, job, run, why)

    done = await asyncio.gather(*map(one, taken))
    return [outcome for outcome in done if outcome is not None]


async def _sent(api: NamespaceApi, job: BulkJob, tried: Sequence[bytes]) -> set[bytes]:
    """Runs that have had the message of this job: those that have its key, and those that were cancelled since. Keys go with the end of a run."""
    if not tried:
        return set()
    sent = await api.ports.bulk_jobs.sent(tried, _key(job))
    if job.action == "signal":
        return sent
    items = await api.ports.reads.matching(api.ns, And(()), [run_id for run_id in tried if run_id not in sent])
    cancelled = (i for i in items if i.status == RunStatus.CANCELLED and (i.finished_us or 0) > job.created_us)
    return sent | {item.run_id for item in cancelled}


def _refusal(job: BulkJob, item: RunItem | None, root: bytes) -> str:
    if item is None:
        return "the run does not match any more"
    if root != item.run_id:
        return f"the run belongs to run {ids.text(root)}, which failed too: a retry of that one retries both"
    if job.action == "retry" and (item.finished_us or 0) > job.created_us:
        return "the run has failed once more since this job was started"
    return nothing_to_do(job.action, item)


async def _acted(api: NamespaceApi, job: BulkJob, run: TakenRun, refusal: str) -> BulkRun | None:
    # An engine may have done it before it was killed; for a message that is known.
    was_done = run.tries > 1 and not _is_message(job)
    try:
        if refusal:
            raise RunFinished(refusal)
        await _do(api, job, run.run_id)
    except (Conflict, NotFound, RunFinished) as error:
        if was_done:
            return BulkRun(run.run_id, "done")
        is_over = isinstance(error, NotFound | RunFinished)
        return BulkRun(run.run_id, "skipped" if is_over else "failed", clip(str(error)))
    except Unavailable as error:
        return BulkRun(run.run_id, "failed", clip(str(error))) if run.tries >= TRIES_MAX else None
    except Exception as error:  # one run does not end the job
        if not isinstance(error, PerdureError):
            log.exception("bulk job %s: %s of run %s", ids.text(job.id), job.action, ids.text(run.run_id))
        return BulkRun(run.run_id, "failed", clip(str(error) or repr(error)))
    return BulkRun(run.run_id, "done")


async def _do(api: NamespaceApi, job: BulkJob, run_id: bytes) -> None:
    named = ids.text(run_id)
    match job.action:
        case "cancel":
            await runs.send_cancel(api, run_id, job.reason, _key(job))
        case "terminate":
            await runs.send_terminate(api, run_id, job.reason, _key(job))
        case "pause":
            await runs.pause(api, PauseRun(named, job.reason))
        case "resume":
            await runs.resume(api, ChangeRun(named))
        case "retry":
            await runs.retry(api, ChangeRun(named))
        case "delete":
            await runs.delete(api, ChangeRun(named))
        case "signal":
            await messages.signal(api, SendSignal(named, job.signal, job.payload or b"null", key=_key(job)))


def _is_message(job: BulkJob) -> bool:
    return job.action in ("cancel", "terminate", "signal")


def _key(job: BulkJob) -> str:
    """Of the message of a job to a run."""
    return f"bulk:{ids.text(job.id)}"
