"""Edits by SQL, as an attacker or an accident would make them: `verify` names each. And every invariant has an edit that breaks it.

One database with a run of every kind is made once, and put back after every edit.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from perdure import (
    Approval,
    Blob,
    EngineSettings,
    Handle,
    Limit,
    Perdure,
    Retry,
    Schedule,
    Signal,
    State,
    attempt,
    task,
    wf,
    workflow,
)
from perdure.core import chain, ids
from perdure.core import events as ev
from perdure.core.api import runs
from perdure.core.invariants import INVARIANTS, NEEDS, LedgerLine
from perdure.core.messages import SignalMessage
from perdure.core.placement import Placement
from perdure.core.retry import TaskOptions
from perdure.core.work import StartRequest
from perdure.errors import RetryLater, RunCancelled
from perdure.localpg.cluster import PrivateCluster
from perdure.programs.verify_ledger import read_ledger, read_signals, read_starts, sorted_ledger
from perdure.store.migrate import migrate
from perdure.store.verify import verify
from perdure.testing.ledger import Ledger, Signals, Starts
from perdure.wire.codec import decode_events, encode_events, encode_message
from tests.fakes.waiting import forever, until

LIMIT = "60s"
ledgers: list[Ledger] = []

go = Signal("tampered_go", int)
total = State("tampered_total", 0)


@task(name="tampered_add")
async def add(n: int) -> int:
    with ledgers[-1].execution() as line:
        line.effect()
    return n + 1


@task(name="tampered_after")
async def follow(after: list[str]) -> str:
    with ledgers[-1].execution(after) as line:
        line.effect()
    return attempt().task_id


@task(name="tampered_flaky", retry=Retry(3, delay="100ms"))
async def flaky() -> int:
    with ledgers[-1].execution() as line:
        if attempt().number == 1:
            raise ConnectionError("once")
        if attempt().number == 2:
            raise RetryLater("10ms")
        line.effect()
    return 1


@task(name="tampered_broken", retry=Retry(1))
async def broken() -> int:
    raise ValueError("no such thing")


@task(name="tampered_limited", limit=Limit(2))
async def limited() -> int:
    await forever()


@workflow(name="tampered_child")
async def child(n: int) -> int:
    return await add(n)


@workflow(name="tampered_main")
async def main_flow(width: int) -> int:
    total.set(width)
    await flaky()
    await wf.map(add, range(width))
    await follow([await follow([])])
    await child(1)
    await wf.sleep("10ms")
    return await go.next() + await go.next()


@workflow(name="tampered_failing")
async def failing() -> int:
    return await broken()


@workflow(name="tampered_continued")
async def continued(n: int) -> int:
    if n:
        return await wf.continue_as_new(n - 1)
    return n


@workflow(name="tampered_waiting")
async def waiting() -> int:
    return await add(1) + await go.next()


first = Approval("tampered_first", assignees=["ada"])


@workflow(name="tampered_asking")
async def asking() -> None:
    await first.wait()
    await Approval("tampered_ok", assignees=["ada"]).wait()


@workflow(name="tampered_cancelled")
async def cancelled() -> int:
    return await limited()


@workflow(name="tampered_holding")
async def holding() -> int:
    return await limited()


LARGE, BLOB_BYTES = 2_000_000, 1_000
"""Of content of several chunks, and of content that other content refers to."""


@task(name="tampered_blob")
async def blob() -> Blob:
    return Blob.from_bytes(b"b" * BLOB_BYTES)


@workflow(name="tampered_stored")
async def stored(text: str) -> list[Any]:
    return [await blob(), text[:100_000]]


class Scene:
    """What was made, and the files that tell of it."""

    def __init__(self, directory: Path) -> None:
        self.ledger, self.starts, self.signals = (directory / f"{n}.jsonl" for n in ("ledger", "starts", "signals"))
        self.database = ""
        self.tables: list[str] = []


async def _make(dsn: str, scene: Scene) -> None:
    await migrate(dsn)
    ledgers.append(Ledger(scene.ledger))
    starts, signals = Starts(scene.starts), Signals(scene.signals)
    async with Perdure(dsn, settings=EngineSettings(close_grace_s=0.1, placement=Placement(idle_s=0.05))) as client:
        for n in range(3):
            request = StartRequest(workflow="tampered_main", version="", input=b'{"width": 3}', attributes=b'{"n": 1}')
            started = await client._backend.call(runs.START, request)
            handle = await client.get(ids.text(started.run_id), workflow=main_flow)
            starts.acknowledged(handle.id)
            for value in (n, 10 + n):
                await go.send(handle.id, value)
                signals.acknowledged(handle.id, go.name, value)
            assert await handle.result(LIMIT) == 10 + 2 * n
        await child.options(key="a-key").start(1)
        await child.options(key="b-key").start(2)
        failed = await failing.start()
        with pytest.raises(Exception, match="no such thing"):
            await failed.result(LIMIT)
        await (await continued.start(1)).result(LIMIT)
        await waiting.options(timeout="1h").start()
        asked = await asking.start()
        await _reached(asked, "PromiseCreated")
        await asked.approve(first, by="ada")
        await _reached(asked, "PromiseResolved")
        await client.deploy("flow: tampered-flow\ntasks: {a: {value: 1}}")
        scheduled = Schedule("tampered", child.bind(5), every="24h")
        await scheduled.apply()
        await (await scheduled.trigger()).result(LIMIT)
        await (await stored.start("t" * LARGE)).result(LIMIT)
        await holding.start()
        await holding.start()
        stopped = await cancelled.start()
        connection = await asyncpg.connect(dsn)
        await until(lambda: connection.fetchval("select count(*) >= 2 from perdure.flow_control_slot"))
        admitted = "select head from perdure.run_queue where workflow = 'tampered_waiting'"
        await until(lambda: connection.fetchval(admitted))
        await stopped.cancel()
        with pytest.raises(RunCancelled):
            await stopped.result(LIMIT)
        request = StartRequest(workflow="tampered_waiting", version="", input=b"{}", key="c-key")
        await client._backend.call(runs.START, request)
    await connection.execute(
        "insert into perdure.set_aside_message (id, ns, run_id, kind, name, body, at, reason) "
        "select 1, 1, run_id, 'signal', 'w', $1, now(), 'failed' from perdure.run where workflow = 'tampered_failing'",
        encode_message(SignalMessage("w", b"1")),
    )
    await _left_in_flight(connection)
    await _batched(connection)
    for n in range(4):
        await connection.execute(
            "insert into perdure.audit (ns, actor, action, target, detail) values (1, 'me', 'test', $1, '{\"n\": 1}')",
            str(n),
        )
    scene.tables = [
        r["name"]
        for r in await connection.fetch(
            "select relname as name from pg_class where relnamespace = 'perdure'::regnamespace and relkind in ('r', 'p') and not relispartition"
        )
    ]
    await connection.execute("create schema saved")
    for table in scene.tables:
        await connection.execute(f"create table saved.{table} as table perdure.{table}")
    await connection.close()
    ledgers.pop().close()
    starts.close()
    signals.close()


async def _reached(handle: Handle[Any], event: str) -> None:
    async for found in handle.events():
        if found.type == event:
            return


async def _left_in_flight(c: Any) -> None:
    """Two tasks with their slots, as an engine that was killed leaves them."""
    session = await c.fetchval(
        "insert into perdure.engine_session (engine, expires_at) values ('killed', now() + interval '1 day') returning id"
    )
    tasks = await c.fetch(
        "update perdure.task_queue set owner = $1, status = 'dispatched' where name = 'tampered_limited' returning id, run_id",
        session,
    )
    assert len(tasks) == 2
    for t in tasks:
        await c.execute(
            "insert into perdure.flow_control_slot (ns, key, holder, run_id) values (1, 'task/tampered_limited', $1, $2)",
            t["id"],
            t["run_id"],
        )


async def _batched(pool: Any) -> None:
    """A batched start that waits for more."""
    run = ids.text(ids.run_id(1_900_000_000_000, 0, 7))
    await pool.execute(
        "insert into perdure.deferred_start (run_id, ns, workflow, key, kind, due_at, last_at, items, bytes, request) "
        "values ($1, 1, 'w', 'k', 'batch', now() + interval '1 day', now() + interval '1 day', 2, 2, '')",
        run,
    )
    await pool.execute(
        "insert into perdure.deferred_start_input (run_id, n, input) values ($1, 0, 'x'), ($1, 1, 'y')", run
    )


@pytest.fixture(scope="module")
def scene(cluster: PrivateCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("tampering"))
    made.database = f"tampered_{os.getpid()}"
    dsn = cluster.create_database(made.database)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _make(dsn, made)).result()
    yield made
    cluster.drop_database(made.database)


@pytest.fixture
async def copy(cluster: PrivateCluster, scene: Scene) -> AsyncIterator[str]:
    """The scene, put back afterwards: far cheaper than a database for every edit."""
    dsn = cluster.dsn(scene.database)
    yield dsn
    async with superuser(dsn) as c:
        await c.execute(";".join([await _put_back(c, t) for t in scene.tables]))


async def _put_back(c: Any, table: str) -> str:
    """Generated columns follow from the others."""
    names = await c.fetchval(
        "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute"
        " where attrelid = ('perdure.' || $1)::regclass and attnum > 0 and not attisdropped and attgenerated = ''",
        table,
    )
    return f"delete from perdure.{table}; insert into perdure.{table} ({names}) overriding system value select {names} from saved.{table}"


async def violations(
    dsn: str, scene: Scene, ledger: Path | None = None, signals: Path | None = None, *, at_rest: bool = False
) -> dict[int, list[str]]:
    with sorted_ledger(ledger or scene.ledger) as lines:
        names = frozenset(x.name for x in read_ledger(ledger or scene.ledger))
        sent = read_signals(signals or scene.signals)
        found = await verify(
            dsn, ledger=lines, names=names, starts=read_starts(scene.starts), signals=sent, at_rest=at_rest
        )
    return {t.number: [e.what for e in t.examples] for t in found if t.violations}


@asynccontextmanager
async def superuser(dsn: str) -> AsyncIterator[Any]:
    """Triggers do not fire for it: what is append-only is not, to an attacker with these rights."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("set session_replication_role = replica")
        yield connection
    finally:
        await connection.close()


async def tamper(dsn: str, statement: str) -> None:
    async with superuser(dsn) as c:
        for one in statement.split(";"):
            assert not (await c.execute(one)).endswith(" 0"), f"it changed nothing: {one}"


async def test_nothing_is_found_where_nothing_was_changed(copy: str, scene: Scene) -> None:
    with sorted_ledger(scene.ledger) as lines:
        names = frozenset(x.name for x in read_ledger(scene.ledger))
        found = await verify(
            copy, ledger=lines, names=names, starts=read_starts(scene.starts), signals=read_signals(scene.signals)
        )
    assert {t.number: [e.what for e in t.examples] for t in found if t.violations} == {}
    unseen = {t.number for t in found if not t.examined and not t.needs}
    assert not unseen, "the scene has something of every kind to look at"


MAIN = "(select min(run_id::text)::uuid from perdure.run where workflow = 'tampered_main')"
ENDED = f"where run_id = {MAIN}"
OTHER = "2147483"

EDITS = [
    # The fifteen of the review, the seven that were missed first.
    (22, "namespace", f"update perdure.run set ns = {OTHER} {ENDED}"),
    (22, "namespace", f"update perdure.history set ns = {OTHER} {ENDED} and seq > 1"),
    (4, "column workflow", f"update perdure.run set workflow = 'other' {ENDED}"),
    (4, "column version", f"update perdure.run set version = 'other' {ENDED}"),
    (4, "column key", f"update perdure.run set key = 'a-key' {ENDED}"),
    (4, "column finished_at", f"update perdure.run set finished_at = finished_at - interval '1 day' {ENDED}"),
    (
        3,
        "hash",
        f"update perdure.history set body = overlay(body placing '\\x39' from octet_length(body) for 1) {ENDED} and last = (select events from perdure.run {ENDED})",
    ),
    (23, "is gone", "delete from perdure.audit where id = 2"),
    (3, "is followed by event", f"delete from perdure.history {ENDED} and seq = 2"),
    (4, "the history says", f"update perdure.run set status = 'failed' {ENDED}"),
    (4, "counts", f"update perdure.run set events = events + 1 {ENDED}"),
    (9, "epoch", f"update perdure.run set epoch = 0 {ENDED}"),
    (4, "has no row", f"delete from perdure.task {ENDED} and seq = 1"),
    (4, "in its row", f"update perdure.task set status = 'failed' {ENDED} and seq = 1"),
    (4, "stored state differs", f"update perdure.run_state set value = '5' {ENDED}"),
    # The other columns of a run.
    (4, "column kind of the run", f"update perdure.run set kind = 'flow' {ENDED}"),
    (4, "column kind of the run", "update perdure.run_queue set kind = 'flow' where workflow = 'tampered_waiting'"),
    (4, "column kind of the promise", "update perdure.promise set kind = 'promise' where kind = 'approval'"),
    (4, "column kind of the promise", "update perdure.promise set kind = 'event' where kind = 'approval'"),
    (4, "its current version of kind code", "update perdure.workflow set kind = 'dag' where name = 'tampered_main'"),
    (
        4,
        "which its document is not",
        "update perdure.workflow_version set kind = 'graph' where workflow = 'tampered_main'",
    ),
    (
        4,
        "which its document is not",
        "update perdure.workflow_version set kind = 'graph' where workflow = 'tampered-flow'",
    ),
    (
        25,
        "it ended with attempt 7",
        "update perdure.task set attempts = 7 where run_id = (select min(run_id::text)::uuid from perdure.task)",
    ),
    (13, "group of kind run", "update perdure.flow_control_group set kind = 'run'"),
    (20, "has no input", "update perdure.deferred_start set kind = 'debounce'"),
    (20, "has an input of its own", "update perdure.deferred_start set input = 'x'"),
    (4, "column created_at", f"update perdure.run set created_at = created_at - interval '1 second' {ENDED}"),
    (4, "column parent_id", "update perdure.run set parent_id = null where parent_id is not null"),
    (4, "column parent_seq", "update perdure.run set parent_seq = 7 where parent_id is not null"),
    (4, "column attributes", f"update perdure.run set attributes = '{{\"n\": 99}}' {ENDED}"),
    (4, "column error", "update perdure.run set error = 'other' where workflow = 'tampered_failing'"),
    (4, "column error_code", "update perdure.run set error_code = 'other' where workflow = 'tampered_failing'"),
    (4, "column successor", "update perdure.run set successor = gen_random_uuid() where successor is not null"),
    (9, "epoch", f"update perdure.run set epoch = epoch + 1 {ENDED}"),
    (3, "does not have the row", f"update perdure.run set head = '\\x00' {ENDED}"),
    (4, "column workflow", "update perdure.run_queue set workflow = 'other' where workflow = 'tampered_waiting'"),
    (22, "namespace", f"update perdure.run_queue set ns = {OTHER} where workflow = 'tampered_waiting'"),
    # The history itself.
    (3, "hash", f"update perdure.history set hash = '\\x00' {ENDED} and seq = 1"),
    (3, "hash", f"update perdure.history set epoch = epoch + 1 {ENDED} and seq = 1"),
    (3, "hash", f"update perdure.history set at = at - interval '1 microsecond' {ENDED} and seq = 1"),
    (
        3,
        "hash",
        f"update perdure.history set body = (select h.body from perdure.history h where h.run_id <> {MAIN} and h.seq = 1 and h.body <> history.body limit 1) {ENDED} and seq = 1",
    ),
    (
        3,
        "does not have the row",
        f"delete from perdure.history {ENDED} and last = (select events from perdure.run {ENDED})",
    ),
    (
        3,
        "does not have the row",
        "delete from perdure.history where seq > 1 and run_id in (select run_id from perdure.run_queue where workflow = 'tampered_waiting')",
    ),
    (4, "no history", "delete from perdure.history where run_id in (select run_id from perdure.run_queue)"),
    # Rows of tasks.
    (22, "namespace", f"update perdure.task set ns = {OTHER} {ENDED} and seq = 1"),
    (4, "column name", f"update perdure.task set name = 'other' {ENDED} and seq = 1"),
    (4, "column queue", f"update perdure.task set queue = 'other' {ENDED} and seq = 1"),
    (4, "column node", f"update perdure.task set node = 'other' {ENDED} and seq = 1"),
    (4, "column error", "update perdure.task set error = 'other' where name = 'tampered_broken'"),
    (4, "column attempts", "update perdure.task set attempts = 2 where name = 'tampered_broken'"),
    (4, "lost", f"update perdure.task set lost = 5 {ENDED} and seq = 1"),
    (
        4,
        "column finished_at",
        f"update perdure.task set finished_at = finished_at + interval '1 hour' {ENDED} and seq = 1",
    ),
    (
        4,
        "column started_at",
        f"update perdure.task set started_at = started_at - interval '1 hour' {ENDED} and seq = 1",
    ),
    (
        4,
        "column scheduled_at",
        f"update perdure.task set scheduled_at = scheduled_at - interval '1 hour' {ENDED} and seq = 1",
    ),
    (4, "no end in the history", f"update perdure.task set seq = 99 {ENDED} and seq = 1"),
    # The audit log.
    (
        23,
        "its chain ends with line 4",
        "delete from perdure.audit where id = 5; delete from perdure.audit_chain where n = 5",
    ),
    (23, "is gone", "delete from perdure.audit where id = 4"),
    (23, "is followed by line", "delete from perdure.audit where id = 2; delete from perdure.audit_chain where n = 2"),
    (23, "changed", "update perdure.audit set actor = 'other' where id = 2"),
    (23, "changed", "update perdure.audit set detail = '{}' where id = 2"),
    (23, "changed", "update perdure.audit set at = at + interval '1 second' where id = 2"),
    (23, "changed", f"update perdure.audit set ns = {OTHER} where id = 2"),
    (23, "changed", "update perdure.audit_chain set hash = '\\x00' where n = 2"),
    (23, "never chained", "insert into perdure.audit (ns, actor, action, target) values (1, 'me', 'forged', 'x')"),
    (23, "head of the audit log", "delete from perdure.audit_head"),
    # One at least for each of the others.
    (8, "without an effect", "update perdure.task set attempts = 2 where name = 'tampered_after'"),
    (15, "its nominal time belongs to", "update perdure.schedule_fire set run_id = gen_random_uuid()"),
    (1, "found 0 times", f"delete from perdure.run {ENDED}"),
    (2, "names this run", "update perdure.run_key set input_hash = '\\x00' where key = 'a-key'"),
    (2, "names this run", f"update perdure.run_key set run_id = {MAIN} where key = 'a-key'"),
    (2, "does not name it", "delete from perdure.run_key where key = 'c-key'"),
    (
        13,
        "hold task/tampered_limited",
        "insert into perdure.flow_control_slot (ns, key, holder, run_id) select ns, key, gen_random_uuid(), run_id from perdure.flow_control_slot limit 1",
    ),
    (
        13,
        "held by nothing",
        "insert into perdure.flow_control_slot (ns, key, holder, run_id) values (1, 'key/x', gen_random_uuid(), gen_random_uuid())",
    ),
    (13, "without a slot", "delete from perdure.flow_control_slot"),
    (26, "waits in the inbox", f"insert into perdure.inbox (ns, run_id, body, kind) select 1, {MAIN}, '', 'signal'"),
    (26, "and the run is failed", "update perdure.set_aside_message set reason = 'cancelled'"),
    (28, "and continued as", "update perdure.run_chain set head = run_id"),
    (16, "cannot be read", f"insert into perdure.inbox (ns, run_id, body, kind) select 1, {MAIN}, 'junk', 'signal'"),
    (
        18,
        "after the end of its run",
        f"update perdure.task set started_at = finished_at + interval '1 hour' {ENDED} and seq = 1",
    ),
    (20, "bytes of items", "delete from perdure.deferred_start_input where n = 1"),
    (20, "does not exist", "delete from perdure.deferred_start"),
    (20, "although its run is there", f"update perdure.deferred_start set run_id = {MAIN}"),
    (24, "it is missing", "delete from perdure.payload"),
    (24, "further content that is missing", f"delete from perdure.payload where size = {BLOB_BYTES}"),
    (24, "never uploaded completely", "update perdure.payload set is_complete = false"),
    (24, "bytes, the history says", "update perdure.payload set size = size + 1"),
    (24, "do not have this SHA-256", "update perdure.payload_chunk set data = repeat('x', length(data))::bytea"),
    (24, "do not have this SHA-256", "delete from perdure.payload_chunk where n = 1"),
    (24, "not recorded as used", "delete from perdure.payload_use"),
    (22, "inbox", f"insert into perdure.inbox (ns, run_id, body, kind) select {OTHER}, {MAIN}, '', 'signal'"),
    (22, "promise", f"insert into perdure.promise (run_id, name, ns, created_at) select {MAIN}, 'p', {OTHER}, now()"),
    (22, "run_state", f"update perdure.run_state set ns = {OTHER} {ENDED}"),
    (22, "its parent", f"update perdure.run set ns = {OTHER} {ENDED}; update perdure.history set ns = {OTHER} {ENDED}"),
]


async def test_lines_that_are_written_together_and_at_once_by_others_are_one_chain(copy: str, scene: Scene) -> None:
    line = "insert into perdure.audit (ns, actor, action, target) select 1, $1, 'test', n::text from generate_series(1, 3) n"
    one, two = await asyncpg.connect(copy), await asyncpg.connect(copy)
    try:
        transaction = one.transaction()
        await transaction.start()
        await one.execute(line, "one")
        await two.execute(line, "two")  # committed before the other, with later ids
        await one.execute(line, "one, again")
        await transaction.commit()
        await asyncio.gather(one.execute(line, "at once"), two.execute(line, "at once"))
        order = await one.fetch(
            "select a.actor from perdure.audit a join perdure.audit_chain c on c.id = a.id where a.action = 'test' and a.actor ~ '^(one|two)' order by c.n"
        )
    finally:
        await asyncio.gather(one.close(), two.close())
    assert [r["actor"] for r in order] == ["two"] * 3 + ["one"] * 3 + ["one, again"] * 3
    assert await violations(copy, scene) == {}


@pytest.mark.parametrize(("number", "what", "statement"), EDITS, ids=[f"{n}-{s[:70]}" for n, _, s in EDITS])
async def test_each_edit_is_named(copy: str, scene: Scene, number: int, what: str, statement: str) -> None:
    await tamper(copy, statement)
    found = await violations(copy, scene)
    assert any(what in one for one in found.get(number, [])), found


@pytest.mark.parametrize("table", ["history", "run"])
async def test_what_retention_dropped_is_no_damage(copy: str, scene: Scene, table: str) -> None:
    """Days are dropped table by table: in between, an ended run of such a day has rows in some of them."""
    await tamper(copy, f"delete from perdure.{table} {ENDED}")
    assert await violations(copy, scene)
    await tamper(
        copy, f"insert into perdure.retention values ('{table}', 'ffffffff-0000-0000-0000-000000000000', now())"
    )
    found = await violations(copy, scene)
    assert set(found) <= {1, 16}, f"only what people acknowledged is missing: {found}"


# -- those that hold at rest only ----------------------------------------------------------------------------------------

AT_REST = [
    (17, "message", f"insert into perdure.inbox (ns, run_id, body, kind) select 1, {MAIN}, '', 'signal'"),
    (21, "unfinished tasks", "update perdure.run_queue set stuck = null"),
    (21, "stuck", "update perdure.run_queue set stuck = 'x: y', owner = null"),
]


@pytest.mark.parametrize(("number", "what", "statement"), AT_REST)
async def test_what_is_left_over_is_named(copy: str, scene: Scene, number: int, what: str, statement: str) -> None:
    await tamper(copy, statement)
    found = await violations(copy, scene, at_rest=True)
    assert any(what in one for one in found.get(number, [])), found


# -- a forger who knows the chain: the history is written anew, with hashes that fit ---------------------------------------


def _started(e: list[ev.Event], **changes: Any) -> list[ev.Event]:
    return [msgspec.structs.replace(e[0], **changes), *e[1:]]


def _timer_later(e: list[ev.Event]) -> list[ev.Event]:
    return [
        msgspec.structs.replace(x, fire_at_us=x.fire_at_us + 10**12) if isinstance(x, ev.TimerStarted) else x for x in e
    ]


FORGED = [
    (27, "was not asked", "tampered_asking", lambda e: [x for x in e if not isinstance(x, ev.PromiseCreated)]),
    (5, "comes after event", "tampered_main", lambda e: [*e, ev.CancelRequested()]),
    (6, "never scheduled", "tampered_main", lambda e: [*e[:-1], ev.TasksSucceeded([99], [b"1"]), e[-1]]),
    (7, "and again", "tampered_main", lambda e: [*e[:-1], ev.TasksSucceeded([0], [b"1"]), e[-1]]),
    (12, "where", "tampered_main", lambda e: [*e[:-1], ev.TasksScheduled(99, "t", "", [b""], TaskOptions()), e[-1]]),
    (14, "early", "tampered_main", _timer_later),
    (14, "after its deadline", "tampered_waiting", lambda e: _started(e, deadline_us=1)),
    (
        16,
        "received or pending 0 times",
        "tampered_main",
        lambda e: [x for x in e if not isinstance(x, ev.SignalReceived)],
    ),
    (
        16,
        "received or pending 2 times",
        "tampered_main",
        lambda e: [*e[:-1], *(x for x in e if isinstance(x, ev.SignalReceived)), e[-1]],
    ),
    (16, "another order", "tampered_main", lambda e: _turned(e)),
    (2, "names this run", "tampered_child", lambda e: _started(e, input=b"9")),
]


def _turned(e: list[ev.Event]) -> list[ev.Event]:
    signals = [x for x in e if isinstance(x, ev.SignalReceived)]
    return [signals.pop() if isinstance(x, ev.SignalReceived) else x for x in e]


async def forge(dsn: str, workflow: str, change: Callable[[list[ev.Event]], list[ev.Event]]) -> None:
    """One row instead of all, and the heads that go with it."""
    async with superuser(dsn) as c:
        run_id = await c.fetchval(
            "select run_id from (select run_id, workflow, key from perdure.run union all select run_id, workflow, key from perdure.run_queue) r "
            "where workflow = $1 order by key nulls last, run_id limit 1",
            workflow,
        )
        rows = await c.fetch("delete from perdure.history where run_id = $1 returning seq, ns, epoch, at, body", run_id)
        rows.sort(key=lambda r: r["seq"])
        events = change([e for r in rows for e in decode_events(r["body"])])
        body, ns, epoch, at = encode_events(events), rows[0]["ns"], rows[-1]["epoch"], rows[-1]["at"]
        made = chain.link(chain.BEGINNING, 0, run_id.bytes, ns, 1, len(events), epoch, body)
        same = await c.fetchval(
            "select perdure.chain($1, to_timestamp(0), $2, $3, 1, $4, $5, $6)",
            chain.BEGINNING,
            run_id,
            ns,
            len(events),
            epoch,
            body,
        )
        assert made == same, "the database computes the same hash"
        await c.execute(
            "insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash) values ($1, 1, $2, $3, $4, $5, $6, $7)",
            run_id,
            len(events),
            ns,
            epoch,
            at,
            body,
            made,
        )
        for table in ("run", "run_queue"):
            await c.execute(
                f"update perdure.{table} set events = $2, head = $3 where run_id = $1", run_id, len(events), made
            )


@pytest.mark.parametrize(("number", "what", "workflow", "change"), FORGED)
async def test_a_forged_history_is_named(
    copy: str, scene: Scene, number: int, what: str, workflow: str, change: Callable[[list[ev.Event]], list[ev.Event]]
) -> None:
    await forge(copy, workflow, change)
    found = await violations(copy, scene)
    assert any(what in one for one in found.get(number, [])), found
    assert not any("hash" in one for one in found.get(3, [])), "the chain was forged, too"


# -- what tasks did --------------------------------------------------------------------------------------------------------


def _again(lines: list[LedgerLine]) -> list[LedgerLine]:
    first = next(x for x in lines if x.phase == "begin")
    return [*lines, msgspec.structs.replace(first, mono_us=first.mono_us + 1)]


def _unknown_before(lines: list[LedgerLine]) -> list[LedgerLine]:
    return [msgspec.structs.replace(x, after=(str(uuid.uuid4()),)) if x.after else x for x in lines]


def _at_once(lines: list[LedgerLine]) -> list[LedgerLine]:
    """The second attempt of a task that failed begins a microsecond after the first."""
    ends = {(x.task, x.attempt): x for x in lines if x.phase == "end" and x.failed}
    return [
        msgspec.structs.replace(x, mono_us=ends[x.task, x.attempt - 1].mono_us + 1)
        if x.phase == "begin" and (x.task, x.attempt - 1) in ends
        else x
        for x in lines
    ]


LEDGERS = [
    (8, "without an effect", lambda lines: [x for x in lines if x.phase != "effect"]),
    (10, "began 2 times", _again),
    (11, "nowhere recorded", _unknown_before),
    (19, "at least were due", _at_once),
]


@pytest.mark.parametrize(("number", "what", "change"), LEDGERS)
async def test_a_ledger_that_tells_otherwise_is_named(
    scene: Scene, cluster: PrivateCluster, tmp_path: Path, number: int, what: str, change: Any
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(x) + b"\n" for x in change(list(read_ledger(scene.ledger)))))
    found = await violations(cluster.dsn(scene.database), scene, path)
    assert any(what in one for one in found.get(number, [])), found


def test_every_invariant_is_listed_and_has_an_edit_that_breaks_it() -> None:
    assert list(INVARIANTS) == list(range(1, 29))
    broken = {case[0] for case in (*EDITS, *AT_REST, *FORGED, *LEDGERS)}
    assert broken == set(INVARIANTS)
    assert set(NEEDS) < set(INVARIANTS)
