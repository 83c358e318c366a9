"""The StartStore port on PostgreSQL: put-off starts, and keys that answer a second start with the run of the first."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from perdure.core import chain
from perdure.core.deferred_starts import BatchSpec, DebounceSpec, DedupSpec, joined, same_shape
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.limits import BATCH_ITEMS_MAX, PAYLOAD_BYTES_MAX
from perdure.core.work import run_kind
from perdure.engine.services.deferred_starts import DeferralRequest, DeferredStart, DueStart
from perdure.engine.services.new_runs import NewRun
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.flow_control import put_groups
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row, sealed_history

if TYPE_CHECKING:
    from collections.abc import Sequence

LEASE_S: Final = 5.0
"""How long an engine has to make a run of a start that is due, before another one tries."""
TRIES: Final = 5
SWEEP_ROWS: Final = 500
CONNECTIONS_MAX: Final = 3
"""Of the pool, for starts that wait for one another under a key: the engine needs the others."""
DEBOUNCED: Final = "debounce"
BATCHED: Final = "batch"


@retried()
class PostgresDeferredStarts(PostgresPort):
    def __init__(self, database: str | Connections) -> None:
        super().__init__(database)
        self._gate = asyncio.Semaphore(CONNECTIONS_MAX)
        self._swept: tuple[int, str, str] = (0, "", "")

    async def defer(self, asked: DeferralRequest) -> DeferredStart:
        async with self._gate, self._pool.take() as c, c.transaction():
            await execute(c, "lock_deferred_start_key", key=f"{asked.ns}\n{asked.workflow}\n{asked.later.key}")
            if asked.once and (known := await self._known_item(c, asked)) is not None:
                return known
            row = await fetch_row(c, "lock_deferred_start", ns=asked.ns, workflow=asked.workflow, key=asked.later.key)
            if row is not None and self._is_full(row, asked):
                await execute(c, "close_deferred_start", run_id=row["run_id"])
                row = None
            put = await (self._begin(c, asked) if row is None else self._join(c, asked, row))
            if asked.once:
                row = await fetch_row(
                    c, "insert_item_key", ns=asked.ns, key=_item_key(asked), hash=_digest(asked), answer=put.run_id
                )
                if row is None:  # under another key of a batch, this very moment
                    raise _used(asked)
            return put

    async def _known_item(self, c: Any, asked: DeferralRequest) -> DeferredStart | None:
        """What was answered when the same items were sent before."""
        row = await fetch_row(c, "item_key", ns=asked.ns, key=_item_key(asked))
        if row is None:
            return None
        if row["hash"] != _digest(asked):
            raise _used(asked)
        clock = await fetch_row(c, "next_deferred_start")
        return DeferredStart(row["answer"], clock["clock"])

    def _is_full(self, row: Any, asked: DeferralRequest) -> bool:
        """Whether the row takes no more: it is due and an engine is on its way, or it would be too large."""
        if row["is_due"] or row["kind"] != _kind(asked):
            return True
        if isinstance(asked.later, DebounceSpec):
            return False
        if (
            not row["items"] + asked.items <= BATCH_ITEMS_MAX
            or not row["bytes"] + len(asked.input) <= PAYLOAD_BYTES_MAX
        ):
            return True
        same_shape(row["argument"], asked.argument)
        return False

    async def _begin(self, c: Any, asked: DeferralRequest) -> DeferredStart:
        later = asked.later
        if isinstance(later, DebounceSpec):
            due_us, last_us = min(later.quiet_us, later.latest_us), later.latest_us
        else:
            due_us = last_us = later.max_delay_us
        batched = isinstance(later, BatchSpec)
        row = await fetch_row(
            c,
            "insert_deferred_start",
            run_id=asked.run_id,
            ns=asked.ns,
            workflow=asked.workflow,
            key=later.key,
            kind=_kind(asked),
            due_us=due_us,
            last_us=last_us,
            argument=asked.argument if batched else None,
            items=0,
            bytes=0,
            request=asked.request,
            input=None if batched else asked.input,
        )
        if batched:
            return await self._add(c, asked, asked.run_id, 0)
        return DeferredStart(asked.run_id, row["due_at"])

    async def _join(self, c: Any, asked: DeferralRequest, row: Any) -> DeferredStart:
        if isinstance(asked.later, BatchSpec):
            return await self._add(c, asked, row["run_id"], row["items"])
        moved = await fetch_row(
            c,
            "replace_deferred_start",
            run_id=row["run_id"],
            request=asked.request,
            quiet_us=asked.later.quiet_us,
            input=asked.input,
        )
        return DeferredStart(row["run_id"], moved["due_at"])

    async def _add(self, c: Any, asked: DeferralRequest, run_id: bytes, items: int) -> DeferredStart:
        """Items are numbered by how many came before, so that their order is that of the starts."""
        assert isinstance(asked.later, BatchSpec)
        if asked.items:
            await execute(c, "insert_deferred_start_input", run_id=run_id, n=items, input=asked.input)
        elif not items:
            raise InvalidInput("the first start of a batch brings no items; add at least one")
        enough = items + asked.items >= asked.later.size
        moved = await fetch_row(
            c,
            "extend_deferred_start",
            run_id=run_id,
            request=asked.request,
            items=asked.items,
            bytes=len(asked.input),
            enough=enough,
        )
        return DeferredStart(run_id, moved["due_at"])

    async def next_due(self) -> tuple[int, int | None]:
        async with self._pool.take() as c:
            row = await fetch_row(c, "next_deferred_start")
        return row["clock"], row["due_at"]

    async def take_due(self, limit: int) -> list[DueStart]:
        """Closed rows do not change any more, so any engine that reads them creates the same run."""
        found: list[DueStart] = []
        async with self._pool.take() as c:
            for r in await fetch(c, "claim_deferred_starts", limit=limit, lease_s=LEASE_S):
                data = r["input"]
                if r["kind"] == BATCHED:
                    inputs = [i["input"] for i in await fetch(c, "deferred_start_inputs", run_id=r["run_id"])]
                    if not inputs:
                        continue  # another engine made the run a moment ago
                    data = joined(inputs)
                found.append(DueStart(r["run_id"], r["ns"], r["request"], data))
        return found

    async def begin_due(self, run: NewRun) -> bool:
        async with self._pool.take() as c, c.transaction():
            if await fetch_row(c, "delete_deferred_start", run_id=run.run_id) is None:
                return False
            await insert_run(c, run)
            return True

    async def begin_once(self, run: NewRun, dedup: DedupSpec) -> bytes:
        for _ in range(TRIES):
            async with self._gate, self._pool.take() as c, c.transaction():
                holder = await take_dedup(c, run, dedup)
                if holder == run.run_id:
                    await insert_run(c, run)
                if holder is not None:
                    return holder
        raise kept_changing(dedup.key)

    async def expected(self, ns: int, run_ids: Sequence[bytes]) -> set[bytes]:
        async with self._pool.take() as c:
            return {r["run_id"] for r in await fetch(c, "expected_runs", ns=ns, run_ids=list(run_ids))}

    async def sweep(self) -> None:
        """Forget keys that say nothing any more: a page at a time, and the next page the next time."""
        async with self._pool.take() as c:
            await execute(c, "delete_expired_dedups", limit=SWEEP_ROWS)
            async with c.transaction():
                ns, workflow, key = self._swept
                page = await fetch(
                    c, "lock_lasting_dedups", after_ns=ns, after_workflow=workflow, after_key=key, limit=SWEEP_ROWS
                )
                self._swept = (page[-1]["ns"], page[-1]["workflow"], page[-1]["key"]) if page else (0, "", "")
                ended = await fetch(c, "finished_runs", run_ids=[r["run_id"] for r in page]) if page else []
                over = {r["run_id"] for r in ended}
                rows = [(r["ns"], r["workflow"], r["key"]) for r in page if r["run_id"] in over]
                if rows:
                    await execute(c, "delete_dedups", keys=rows)


async def insert_run(c: Any, run: NewRun) -> None:
    """A run without an owner, within a transaction of the caller."""
    await put_groups(c, [run.group] if run.group is not None else [])
    body = sealed_history(c, run.run_id, run.body)
    await execute(
        c,
        "insert_run",
        run_id=run.run_id,
        ns=run.ns,
        workflow=run.workflow,
        version=run.version,
        kind=run_kind(run.version),
        key=run.key or None,
        body=body,
        attributes=run.attributes,
        group_id=run.group.id if run.group is not None else None,
        deadline_at=run.deadline_us or None,
        hash=chain.first(run.run_id, run.ns, 0, body),
        pin=run.version if run.pinned else "",
    )


async def take_dedup(c: Any, run: NewRun, dedup: DedupSpec) -> bytes | None:
    """The run that the key belongs to: this one, or one that was there before. None: it was taken a moment ago and forgotten since; ask
    again in another transaction."""
    where = {"ns": run.ns, "workflow": run.workflow, "key": dedup.key}
    if await fetch_row(c, "claim_dedup", **where, run_id=run.run_id, duration_us=dedup.within_us) is not None:
        return run.run_id
    row = await fetch_row(c, "lock_dedup", **where)
    if row is None:
        return None
    if not await _is_free(c, row):
        holder: bytes = row["run_id"]
        return holder
    await execute(c, "reassign_dedup", **where, run_id=run.run_id, duration_us=dedup.within_us)
    return run.run_id


async def _is_free(c: Any, row: Any) -> bool:
    if not row["until_end"]:
        return bool(row["expired"])
    return await has_finished(c, row["run_id"])


async def has_finished(c: Any, run_id: bytes) -> bool:
    """Whether a run has ended, and what it continued as."""
    return bool(await fetch(c, "finished_runs", run_ids=[run_id]))


def kept_changing(key: str) -> Conflict:
    return Conflict(f"the key {key!r} kept changing hands while this start tried to take it; try again")


def _kind(asked: DeferralRequest) -> str:
    return DEBOUNCED if isinstance(asked.later, DebounceSpec) else BATCHED


def _used(asked: DeferralRequest) -> Conflict:
    return Conflict(f"the key {asked.once!r} was used for other items; use a new key for new items")


def _item_key(asked: DeferralRequest) -> str:
    return f"item:{asked.once}"


def _digest(asked: DeferralRequest) -> bytes:
    state = blake2b(digest_size=16)
    for part in (asked.workflow.encode(), asked.later.key.encode(), asked.input):
        state.update(len(part).to_bytes(8, "big") + part)
    return state.digest()
