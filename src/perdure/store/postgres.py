"""The engine's Store port on PostgreSQL.

Commits have a connection of their own, so that nothing else stands in their way. Everything else borrows from a small pool.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from asyncpg import exceptions as pg

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.durations import FOREVER_US
from perdure.core.errors import Failure, Fenced, Unavailable
from perdure.core.flow_control.admission import Held
from perdure.core.flow_control.groups import Line, Rules
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import (
    DECLARED_TASKS_MAX,
    MESSAGE_KEYS_KEPT_S,
    SUSPECT_TAKEOVERS,
    TAKEOVERS_MAX,
    UPDATE_ANSWERS_KEPT_S,
)
from perdure.core.work import Outcome, RunView
from perdure.engine.commits.rows import Batch
from perdure.engine.ports import (
    Adopted,
    ClaimedRun,
    ClaimedTask,
    Committed,
    Due,
    Entered,
    FromLines,
    HistoryRow,
    Kind,
    Loaded,
    LostTask,
    MailRow,
    Named,
    NotCommitted,
    Poison,
    PostRow,
    Renewed,
    Reopening,
    Session,
    Settle,
)
from perdure.store import arrays, flow_control, partitions, pooling
from perdure.store.clashes import CLASH, retried
from perdure.store.connections import TROUBLE, Connections, connect, shift_clock
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row
from perdure.store.run_retry import reopen
from perdure.wire.codec import decode_events

log = logging.getLogger("perdure.store")

CHANNEL: Final = "perdure"
MAIL_PART, HISTORY_PART = 1, 2
"""Parts of `load_runs`."""
QUARANTINED: Final = (
    f"quarantined: engines died, or lost their lease, while they worked on this run TAKEOVERS_MAX={TAKEOVERS_MAX} times in a row, and nothing of it "
    "was recorded in between. It is not claimed again. See in their logs what became of them (memory, a blocked event loop), repair the "
    "cause, then `perdure resume` the run"
)
DOUBT_PAUSE_S: Final = 0.2
TRIM_ROWS: Final = 5_000
"""Old answers to updates that one sweep deletes."""
KEYS_TRIMMED: Final = 10_000
"""Keys of messages that one sweep forgets."""


@retried("commit", "post_many")
class PostgresStore(PostgresPort):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._dsn = dsn
        self._committing: Any = None
        self._posting: Any = None
        self._posting_one = asyncio.Lock()
        self._listening: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        self._drop_committing()
        self._drop_posting()
        await super().close()

    @property
    def pool(self) -> Connections:
        """For stores of other things on the same database."""
        return self._pool

    def shift_clock(self, seconds: float) -> None:
        """Tests only: let the database clock of these connections run ahead."""
        self._pool.clock_offset_s = seconds

    @property
    def clock_offset_s(self) -> float:
        return self._pool.clock_offset_s

    # -- ownership --------------------------------------------------------------------------------------------------

    async def register(self, engine: str, lease_s: float, slots: int) -> Session:
        row = await self._row("register_session", engine=engine, lease_s=lease_s, slots=slots)
        return Session(row["id"], row["clock"])

    async def renew(self, session: int, lease_s: float, slots: int, slots_free: int) -> Renewed | None:
        row = await self._row("renew_session", session=session, lease_s=lease_s, slots=slots, slots_free=slots_free)
        return Renewed(row["clock"], row["others"], row["others_free"], row["expired"]) if row is not None else None

    async def reap(self, settle: Settle) -> int:
        """Remove expired sessions and free what they held, in one transaction."""
        async with self._pool.take() as c, c.transaction():
            gone = [r["id"] for r in await fetch(c, "delete_expired_sessions")]
            if gone:
                for r in await fetch(
                    c,
                    "free_lost_runs",
                    sessions=gone,
                    suspect_takeovers=SUSPECT_TAKEOVERS,
                    takeovers_max=TAKEOVERS_MAX,
                    quarantine_reason=QUARANTINED,
                ):
                    if r["stuck"] is not None:
                        log.error("run %s is stuck: %s", ids.text(r["run_id"]), r["stuck"])
                await self._free(c, gone, settle)
            return len(gone)

    async def leave(self, session: int, settle: Settle) -> None:
        """The same for our own session, on purpose."""
        async with self._pool.take() as c, c.transaction():
            gone = [r["id"] for r in await fetch(c, "delete_session", session=session)]
            if gone:
                await fetch(c, "free_runs", sessions=gone)
                await self._free(c, gone, settle)

    async def _free(self, c: Any, sessions: list[int], settle: Settle) -> None:
        # Statements after the DELETE have snapshots of their own: they see what commits in flight wrote while we waited for them.
        rows = await fetch(c, "select_owned_tasks", sessions=sessions)
        again, failed = settle(
            [LostTask(r["id"], r["run_id"], r["seq"], r["attempt"], r["lost"], r["options"]) for r in rows]
        )
        if again:
            await execute(c, "requeue_tasks", tasks=again)
        if failed:
            await execute(c, "drop_tasks_into_inbox", tasks=failed)
        await execute(c, "delete_commit_log", sessions=sessions)

    # -- committing -------------------------------------------------------------------------------------------------

    async def commit(self, session: int, number: int, batch: Batch) -> Committed:
        """Write a batch, all or nothing. Raises Fenced, Poison, or NotCommitted (write it again)."""
        try:
            connection = await self._commit_connection()
        except Unavailable as e:
            await asyncio.sleep(DOUBT_PAUSE_S * random.uniform(0.5, 1.5))
            raise NotCommitted(str(e)) from e
        try:
            row = await self._write(connection, session, number, batch)
        except TROUBLE as e:
            self._drop_committing()
            return await self._settle_doubt(session, number, batch, e)
        except asyncio.CancelledError:
            self._drop_committing()
            raise
        except CLASH as e:
            raise NotCommitted(str(e)) from e
        except (pg.PostgresError, ValueError, OverflowError, TypeError) as e:
            raise Poison(f"{type(e).__name__}: {e}") from e
        if not row["held"]:
            raise Fenced(f"session {session} has expired; the write was refused")
        return Committed(row["at"], frozenset(row["started"]))

    async def _write(self, c: Any, session: int, number: int, batch: Batch) -> Any:
        if not batch.has_rest:
            return await fetch_row(c, "commit_batch", session=session, number=number, **batch.main())
        async with c.transaction():
            row = await fetch_row(c, "commit_batch", session=session, number=number, **batch.main())
            if row["held"]:
                await execute(c, "commit_batch_rest", session=session, **batch.rest())
            return row

    @property
    def away_s(self) -> float:
        """For how long no connection could be made; 0 when the last one could."""
        return self._pool.away_s

    async def _connect(self) -> Any:
        try:
            made = await connect(self._dsn)
        except Unavailable:
            self._pool.reached(False)
            raise
        self._pool.reached(True)
        return made

    async def _commit_connection(self) -> Any:
        if self._committing is None or self._committing.is_closed():
            self._committing = await self._connect()
            arrays.install(self._committing)
        if self._pool.clock_offset_s:
            await shift_clock(self._committing, self._pool.clock_offset_s)
        return self._committing

    def _drop_committing(self) -> None:
        if self._committing is not None:
            self._committing.terminate()
            self._committing = None

    async def _settle_doubt(self, session: int, number: int, batch: Batch, cause: BaseException) -> Committed:
        """The answer to a commit was lost. Ask, as often as it takes, whether it took effect; see claim_commit_number."""
        while True:
            try:
                row = await self._row("claim_commit_number", session=session, number=number)
                if row["alive"] and not row["claimed"]:
                    return await self._read_back(batch)
            except Unavailable:
                await asyncio.sleep(DOUBT_PAUSE_S * random.uniform(0.5, 1.5))
                continue
            if not row["alive"]:
                raise Fenced(f"session {session} expired while a commit was in doubt") from cause
            raise NotCommitted(f"{type(cause).__name__}: {cause}") from cause

    async def _read_back(self, batch: Batch) -> Committed:
        """The answer that was lost, taken from the rows themselves, so that memory goes on as if nothing had happened."""
        started = [row.run_id for row in batch.starts]
        written = [(run_id, 1) for run_id in started] + [(row.run_id, row.seq) for row in batch.appends]
        row = await self._row("read_back", started=started, written=written)
        return Committed(row["at"], frozenset(row["started"]), doubtful=True)

    async def trim_commit_log(self, session: int, below: int) -> None:
        await self._fetch("trim_commit_log", session=session, below=below)

    # -- messages ---------------------------------------------------------------------------------------------------

    async def post(self, run_id: bytes, ns: int, body: bytes) -> int | None:
        """None when the run takes no mail; else its owner's session, 0 for nobody."""
        row = await self._row("post_message", run_id=run_id, ns=ns, body=body)
        return None if row is None else row["owner"] or 0

    async def post_many(self, rows: Sequence[PostRow]) -> list[int]:
        """An outcome for each, in order; see post_messages. Raises NotCommitted (write it again), Poison or Unavailable.

        On a connection of its own: whoever reads much must not stand in the way of messages."""
        places: dict[tuple[bytes, int], int] = {}
        messages = [
            (places.setdefault((run_id, ns), len(places) + 1), body, key, named, stops)
            for run_id, ns, body, key, named, stops in rows
        ]
        try:
            async with self._posting_one:
                connection = await self._post_connection()
                row = await fetch_row(connection, "post_messages", runs=list(places), messages=messages)
        except (pg.UniqueViolationError, *CLASH) as e:
            raise NotCommitted(str(e)) from e
        except TROUBLE as e:
            self._drop_posting()
            raise Unavailable(f"the database is away: {e or type(e).__name__}") from e
        except asyncio.CancelledError:
            self._drop_posting()
            raise
        except (pg.PostgresError, ValueError, OverflowError, TypeError) as e:
            raise Poison(f"{type(e).__name__}: {e}") from e
        outcomes: list[int] = row["outcomes"]
        return outcomes

    async def remember_message(self, run_id: bytes, key: str) -> None:
        await self._fetch("remember_message", run_id=run_id, key=key)

    async def _post_connection(self) -> Any:
        if self._posting is None or self._posting.is_closed():
            self._posting = await self._connect()
            arrays.install(self._posting)
        if self._pool.clock_offset_s:
            await shift_clock(self._posting, self._pool.clock_offset_s)
        return self._posting

    def _drop_posting(self) -> None:
        if self._posting is not None:
            self._posting.terminate()
            self._posting = None

    async def resolve_promise(self, run_id: bytes, ns: int, name: str, body: bytes, *, sure: bool) -> tuple[bool, bool]:
        row = await self._row("resolve_promise", run_id=run_id, ns=ns, name=name, body=body, authorized=sure)
        return row["active"], row["won"]

    async def forget_key(self, ns: int, key: str, run_id: bytes) -> None:
        await self._fetch("forget_key", ns=ns, key=key, run_id=run_id)

    async def unstick(self, run_id: bytes, ns: int, line: Line | None) -> bool:
        async with self._pool.take() as c, c.transaction():
            if (
                await fetch_row(c, "unstick", run_id=run_id, ns=ns, group_id=line.id if line is not None else None)
                is None
            ):
                return False
            await flow_control.put_lines(c, [line] if line is not None else [])
            return True

    async def reopen(self, r: Reopening) -> bool:
        async with self._pool.take() as c:
            return await reopen(c, r)

    async def register_versions(
        self,
        ns: int,
        versions: dict[str, str],
        controls: dict[str, bytes],
        parameters: dict[str, bytes] | None = None,
    ) -> None:
        rows = [
            (w, version, _text(controls.get(w)), _text((parameters or {}).get(w))) for w, version in versions.items()
        ]
        await self._execute("register_versions", ns=ns, versions=rows)

    async def parameters(self, ns: int, workflow: str, version: str) -> bytes | None:
        row = await self._row("workflow_parameters", ns=ns, workflow=workflow, version=version)
        return row["parameters"].encode() if row is not None and row["parameters"] is not None else None

    async def save_task_options(self, ns: int, options: Mapping[str, bytes | None]) -> None:
        await self._execute(
            "save_task_options", ns=ns, tasks=[(name, _text(options[name])) for name in sorted(options)]
        )

    async def task_options(self, ns: int) -> dict[str, bytes]:
        return {
            r["name"]: r["options"].encode() for r in await self._fetch("task_options", ns=ns, limit=DECLARED_TASKS_MAX)
        }

    async def current_versions(self, ns: int, names: Sequence[str]) -> dict[str, str]:
        return {r["name"]: r["current"] for r in await self._fetch("current_versions", ns=ns, names=list(names))}

    async def document(self, ns: int, workflow: str, version: str) -> bytes | None:
        row = await self._row("get_definition", ns=ns, workflow=workflow, version=version)
        return row["document"].encode() if row is not None and row["document"] is not None else None

    # -- claiming ---------------------------------------------------------------------------------------------------

    async def next_due(self, workflows: Sequence[Named], served: Sequence[Kind], *, flows: bool) -> Due:
        row = await self._row("next_due", workflows=workflows, kinds=served, flows=flows)
        return Due(
            row["clock"],
            row["run_at"],
            row["task_at"],
            row["mail"],
            row["line_at"],
            row["run_line_at"],
            row["rules_at"],
            row["line_priority"],
            row["suspects"],
        )

    async def claim_runs(
        self, session: int, workflows: Sequence[Named], limit: int, *, with_mail: bool, flows: bool
    ) -> list[ClaimedRun]:
        return await self._claim(
            "claim_runs_with_mail" if with_mail else "claim_runs", session, workflows, limit, flows
        )

    async def claim_suspect(self, session: int, workflows: Sequence[Named], *, flows: bool) -> list[ClaimedRun]:
        """One run that was taken over several times without progress, if there is one."""
        return await self._claim("claim_suspect", session, workflows, 1, flows)

    async def settle_suspect(self, session: int, run_id: bytes) -> None:
        await self._fetch("settle_suspect", session=session, run_id=run_id)

    async def _claim(
        self, name: str, session: int, workflows: Sequence[Named], limit: int, flows: bool
    ) -> list[ClaimedRun]:
        rows = await self._fetch(name, session=session, workflows=workflows, limit=limit, flows=flows)
        return [
            ClaimedRun(r["run_id"], r["ns"], r["workflow"], r["version"], r["epoch"], tuple(r["keys"] or ()))
            for r in rows
        ]

    async def claim_tasks(self, session: int, served: Sequence[tuple[Kind, int]], limit: int) -> list[ClaimedTask]:
        kinds = [(*kind, free) for kind, free in served]
        rows = await self._fetch("claim_tasks", session=session, kinds=kinds, limit=limit)
        return [ClaimedTask(*r.values()) for r in rows]

    async def claim_from_lines(
        self, session: int, served: Sequence[tuple[Kind, int]], limit: int, rules: Rules
    ) -> FromLines:
        async with self._pool.take() as c:
            return await flow_control.claim_from_lines(c, session, served, limit, rules)

    async def let_in(self, session: int, rules: Rules) -> Entered:
        async with self._pool.take() as c:
            return await flow_control.let_in(c, session, rules)

    async def wake_lines(self, keys: Iterable[tuple[int, str]]) -> None:
        async with self._pool.take() as c:
            await flow_control.wake_lines(c, keys)

    async def held_by(self, ns: int, key: str) -> Held:
        async with self._pool.take() as c:
            return await flow_control.held_by(c, ns, key)

    async def rules(self) -> Rules:
        async with self._pool.take() as c:
            return await flow_control.read_rules(c)

    async def controls(self, ns: int, workflows: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        """What versions of workflows say about flow control of their runs; those that say nothing are left out."""
        rows = await self._fetch("workflow_controls", ns=ns, versions=workflows)
        return {(r["workflow"], r["version"]): r["control"].encode() for r in rows}

    async def adopt_tasks(self, session: int, ns: int, tokens: Sequence[tuple[bytes, int]]) -> Adopted:
        """Take over running tasks with the worker that runs them; the engine it comes from finds out by looking."""
        rows = await self._fetch("adopt_tasks", session=session, ns=ns, tasks=tokens)
        known = await self._fetch("known_tasks", ns=ns, ids=[task_id for task_id, _ in tokens])
        return Adopted([ClaimedTask(*r.values()) for r in rows], {r["id"] for r in known})

    async def still_mine(self, session: int, ids: Sequence[bytes]) -> set[bytes]:
        return {r["id"] for r in await self._fetch("claimed_tasks_alive", session=session, ids=list(ids))}

    async def load(self, run_ids: Sequence[bytes]) -> Loaded:
        """One statement, hence one snapshot: a task is in the queue, or its end is in the inbox or the history, or it is lost. Read one after
        the other, an end that moves from the inbox into the history in between would be seen in neither, unless the history came last; so
        would the end of a task, unless the queue came first. All of the mail: a task whose end were left out would be taken for lost."""
        wanted = list(run_ids)
        queued: set[tuple[bytes, int]] = set()
        mail: list[MailRow] = []
        history: dict[bytes, list[HistoryRow]] = {r: [] for r in wanted}
        for part, run_id, n, last, at_us, body, hash in await self._fetch("load_runs", run_ids=wanted):
            if part == HISTORY_PART:
                history[run_id].append(HistoryRow(run_id, n, last, at_us, body, hash))
            elif part == MAIL_PART:
                mail.append(MailRow(n, run_id, body))
            else:
                queued.add((run_id, n))
        return Loaded(queued, history, mail)

    async def owned_mail(self, session: int, limit: int) -> list[MailRow]:
        return [MailRow(*r.values()) for r in await self._fetch("inbox_of_owner", session=session, limit=limit)]

    async def existing(self, ns: int, run_ids: Sequence[bytes]) -> set[bytes]:
        return (
            {r["run_id"] for r in await self._fetch("existing_runs", ns=ns, run_ids=list(run_ids))}
            if run_ids
            else set()
        )

    # -- reading ----------------------------------------------------------------------------------------------------

    async def namespace(self, name: str) -> int:
        row = await self._row("namespace_id", name=name) or await self._row("create_namespace", name=name)
        number: int = row["id"]
        return number

    async def find_namespace(self, name: str) -> int | None:
        row = await self._row("namespace_id", name=name)
        return row["id"] if row is not None else None

    async def run_by_key(self, ns: int, key: str) -> tuple[bytes, bytes] | None:
        row = await self._row("run_by_key", ns=ns, key=key)
        return (row["run_id"], row["input_hash"]) if row is not None else None

    async def describe(self, run_id: bytes, ns: int) -> RunView | None:
        r = await self._row("get_run", run_id=run_id, ns=ns)
        if r is None:
            return None
        return RunView(
            run_id=r["run_id"], workflow=r["workflow"], version=r["version"], key=r["key"], status=r["status"], created_us=r["created_at"],
            finished_us=r["finished_at"], error=r["error"], stuck=r["stuck"], wake_us=None if r["wake_at"] in (None, FOREVER_US) else r["wake_at"],
            owner=r["owner"], epoch=r["epoch"], successor=r["successor"],
        )  # fmt: skip

    async def ended(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, Outcome]:
        """Outcomes of those that ended; a stuck run counts with its reason, under status running."""
        async with self._pool.take() as c:
            rows = await fetch(c, "ended_runs", ns=ns, run_ids=list(run_ids))
            ends = [r["run_id"] for r in rows if r["stuck"] is None]
            last = {r["run_id"]: r["body"] for r in await fetch(c, "last_rows", run_ids=ends)} if ends else {}
        found: dict[bytes, Outcome] = {}
        for r in rows:
            outcome = _stuck(r) if r["stuck"] is not None else _outcome(last[r["run_id"]])
            if outcome is not None:
                found[r["run_id"]] = outcome
        return found

    async def history_after(self, run_id: bytes, ns: int, after: int, limit: int) -> list[HistoryRow]:
        rows = await self._fetch("history_after", run_id=run_id, ns=ns, after=after, limit=limit)
        return [HistoryRow(run_id, r["seq"], r["last"], r["at"], r["body"]) for r in rows]

    async def read_state(self, run_id: bytes, ns: int, name: str) -> bytes | None:
        row = await self._row("read_state", run_id=run_id, ns=ns, name=name)
        return row["value"] if row is not None else None

    # -- upkeep -----------------------------------------------------------------------------------------------------

    async def sweep(self) -> int:
        forwarded = await self._fetch("forward_orphan_mail")
        await self._fetch("sweep_orphan_mail")
        await self._fetch("sweep_orphan_promises")
        await self._fetch("trim_message_keys", age_s=float(MESSAGE_KEYS_KEPT_S), limit=KEYS_TRIMMED)
        await self._fetch("sweep_workers")
        async with self._pool.take() as c:
            await flow_control.sweep(c)
        await self._fetch("trim_updates", age_s=float(UPDATE_ANSWERS_KEPT_S), limit=TRIM_ROWS)
        return len(forwarded)

    async def create_partitions(self, ahead_days: int) -> int:
        async with self._pool.take() as c:
            return await partitions.create_ahead(c, ahead_days)

    async def drop_partitions(self, keep_days: float) -> int:
        async with self._pool.take() as c:
            return await partitions.drop_old(c, keep_days)

    # -- waking -----------------------------------------------------------------------------------------------------

    async def notify(self, topics: str) -> None:
        async with self._pool.take() as c:
            await c.execute("select pg_notify($1, $2)", CHANNEL, topics)

    async def listen(self, heard: Callable[[str], None]) -> None:
        """Hear other engines, for as long as it works; without it everything is found by asking."""
        self._listening = asyncio.create_task(self._listen(heard), name="perdure-listen")

    async def _listen(self, heard: Callable[[str], None]) -> None:
        while True:
            connection: Any = None
            try:
                connection = await connect(self._dsn)
                if pooling.of(connection) is pooling.Pooling.TRANSACTION:
                    log.info(
                        "a pooler gives every transaction another connection: NOTIFY is not heard, new work is found by polling"
                    )
                    return
                lost = asyncio.Event()
                connection.add_termination_listener(partial(_set, lost))
                await connection.add_listener(CHANNEL, partial(_hear, heard))
                await lost.wait()
            except (*TROUBLE, Unavailable, pg.PostgresError) as e:
                log.debug("not listening: %s", e)
            finally:
                if connection is not None and not connection.is_closed():
                    connection.terminate()
            await asyncio.sleep(random.uniform(0.5, 1.5))


def _text(data: bytes | None) -> str | None:
    return data.decode() if data is not None else None


def _set(event: asyncio.Event, *_: object) -> None:
    event.set()


def _hear(heard: Callable[[str], None], *message: object) -> None:
    heard(str(message[-1]))


def _outcome(body: bytes) -> Outcome | None:
    """The end that a run's last record tells of. None: it was retried since somebody saw that it had ended."""
    last = decode_events(body)[-1]
    match last:
        case ev.RunSucceeded():
            return Outcome(RunStatus.SUCCESS, last.result)
        case ev.RunFailed():
            return Outcome(RunStatus.FAILED, b"", last.failure)
        case ev.RunCancelled():
            return Outcome(RunStatus.CANCELLED, b"", Failure("run_cancelled", last.reason or "the run was cancelled"))
        case ev.RunContinued():
            return Outcome(RunStatus.SUCCESS)
        case _:
            return None


def _stuck(row: Any) -> Outcome:
    code, _, message = row["stuck"].partition(": ")
    return Outcome(row["status"], b"", Failure(code, message))
