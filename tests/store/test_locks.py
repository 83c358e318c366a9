"""Every lock that a statement of the store takes, proved with a second connection.

`holds` is a statement that has to wait while the transaction of the query is open; with KEY SHARE, what changes no key does not wait. `skips` is a
lock that somebody else holds; the query must not wait for it and must not find the row. A lock without an entry here fails a test.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

import perdure.store
from perdure.localpg.cluster import PrivateCluster
from perdure.store.queries import queries
from tests.fakes.rows import requeued_row
from tests.fakes.waiting import until
from tests.store.blocking import is_blocked

RUN, FLOW, MAILED, QUEUED, ANY, SUSPECT, STUCK, DONE = (f"00000000-0000-7000-8000-00000000000{n}" for n in range(1, 9))
DUE, LINED, OWNED, LATE, UNLINED = (f"00000000-0000-7000-9000-00000000000{n}" for n in range(1, 6))
JOB, ENDED_JOB = (f"00000000-0000-7000-b000-00000000000{n}" for n in range(1, 3))
TASKS, RUNS, BLOCKED = (f"00000000-0000-7000-a000-00000000000{n}" for n in range(1, 4))
LIVE, EXPIRED = 1, 2
DIGEST = bytes(32)
NOW = datetime.now(UTC)

SETUP = f"""
insert into perdure.engine_session (engine, expires_at) values ('live', now() + interval '1 hour'), ('expired', now() - interval '1 hour');
insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, group_id, kind) values
  ('{RUN}', 1, 'w', 'v', 'pending', now(), now(), null, 'code'), ('{FLOW}', 1, 'f', 'flow-1', 'pending', now(), now(), null, 'flow'),
  ('{MAILED}', 1, 'm', 'v', 'pending', now(), 'infinity', null, 'code'), ('{QUEUED}', 1, 'l', 'v', 'pending', now(), 'infinity', '{RUNS}', 'code');
insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, suspect) values ('{SUSPECT}', 1, 's', 'v', 'pending', now(), 'infinity', true);
insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, stuck, deadline_at) values
  ('{STUCK}', 1, 's', 'v', 'pending', now(), 'infinity', 'a reason', now());
insert into perdure.run (run_id, ns, workflow, version, status, created_at, finished_at, epoch, events) values
  ('{DONE}', 1, 'w', 'v', 'success', now(), now(), 1, 2);
insert into perdure.inbox (ns, run_id, body, kind) values (1, '{MAILED}', 'x', 'signal');
insert into perdure.run_key (ns, key, run_id, input_hash) values (1, 'mine', '{DONE}', 'x');
insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, owner, scheduled_at, options, input, group_id, start_deadline_at) values
  ('{DUE}', 1, '{RUN}', 1, 't', 'due', 'pending', 1, 0, now(), null, now(), '', '', null, null),
  ('{LINED}', 1, '{RUN}', 2, 't', 'lined', 'pending', 1, 0, now(), null, now(), '', '', '{TASKS}', null),
  ('{OWNED}', 1, '{RUN}', 3, 't', 'owned', 'dispatched', 1, 0, now(), {LIVE}, now(), '', '', null, null),
  ('{LATE}', 1, '{RUN}', 4, 't', 'late', 'pending', 1, 0, now(), null, now(), '', '', null, now()),
  ('{UNLINED}', 1, '{RUN}', 5, 't', 'unlined', 'pending', 1, 0, now(), null, now(), '', '', null, null);
insert into perdure.flow_control_group (id, ns, kind, queue, name, workflow, head_at, next_at, blocked) values
  ('{TASKS}', 1, 'task', 'lined', 't', '', now(), now() - interval '1 hour', null),
  ('{RUNS}', 1, 'run', '', '', 'l', now(), now(), null),
  ('{BLOCKED}', 1, 'task', 'blocked', 't', '', now(), now() + interval '1 hour', 'key');
insert into perdure.promise (run_id, name, ns, created_at, kind, assignees, quorum) values ('{RUN}', 'approval', 1, now(), 'approval', '{{}}', 1);
insert into perdure.promise (run_id, name, ns, created_at, kind, event) values ('{RUN}', 'event', 1, now(), 'event', 'e');
insert into perdure.schedule (ns, name, workflow, input, spec, spec_hash, created_by, fire_at) values (1, 's', 'w', '', '', '', '', now());
insert into perdure.bulk_job (id, ns, action, query, reason, is_dry_run, status, created_at, created_by, owner) values
  ('{JOB}', 1, 'cancel', 'stuck', '', false, 'pending', now(), '', null), ('{ENDED_JOB}', 1, 'cancel', 'stuck', '', false, 'cancelled', now(), '', {LIVE});
insert into perdure.calendar (ns, name, spec, updated_by) values (1, 'c', '', '');
insert into perdure.deferred_start (run_id, ns, workflow, key, kind, due_at, last_at, request) values ('{ANY}', 1, 'w', 'k', 'debounce', now(), now(), '');
insert into perdure.dedup (ns, workflow, key, run_id, expires_at) values
  (1, 'w', 'old', '{ANY}', now() - interval '1 hour'), (1, 'w', 'until its end', '{ANY}', 'infinity');
insert into perdure.payload (ns, store, sha256, size, is_complete, check_at) values (1, '', '\\x{bytes(32).hex()}', 1, true, now() - interval '1 hour');
insert into perdure.payload_garbage (store, sha256, check_at) values ('file:///x/y', '\\x{bytes(32).hex()}', now() - interval '1 hour');
insert into perdure.notification_rule (ns, name, workflows, kinds, late_after_us, target, address, created_by) values
  (1, 'r', '{{*}}', '{{run.late}}', 1, 'webhook', '', '');
insert into perdure.notification (rule_id, ns, kind, occurrence, workflow, hook, data, at, status, due_at, ended_at) values
  (1, 1, 'run.late', '', 'w', null, '{{}}', now(), 'pending', now(), null), (0, 1, 'hook.failed', '', 'w', 'h', '{{}}', now(), 'pending', now(), null),
  (1, 1, 'run.failed', '', 'w', null, '{{}}', now(), 'done', now(), now() - interval '1 hour');
insert into perdure.named_event (ns, name, body, source) values (1, 'e', '', '');
insert into perdure.event_look (run_id, name, ns, event, after_at) values ('{RUN}', 'event', 1, 'e', now());
insert into perdure.workflow_version (ns, workflow, version, kind) values (1, 'subscribed', 'v', 'code');
insert into perdure.sql_request (ns, act, name, payload, options, by, at, due_at) values (1, 'emit', 'asked', '1', jsonb_build_object(), 'me', now(), now());
insert into perdure.event_start (event_id, ns, workflow, version, due_at) select id, 1, 'subscribed', 'v', now() from perdure.named_event;
insert into perdure.run_count (ns, workflow, at, writer, success) values (1, 'w', now() - interval '3 days', 1, 1);
insert into perdure.retention_job (id, name, action, status, low, high, cutoff, default_days, rules, lease_until) values
  ('{JOB}', 'rest', 'delete', 'removing', '{bytes(16).hex()}', '{(b"f" * 16).hex()}', now() + interval '1 hour', 0, '{{"/": 0}}', now());
insert into perdure.run_duration (ns, workflow, day, size, writer, n) values (1, 'w', now() - interval '3 days', 1, 1, 1);
"""

SESSION = f"delete from perdure.engine_session where id = {LIVE}"


class Lock(NamedTuple):
    """One lock of one query, in the order in which they are written there."""

    query: str
    args: dict[str, Any]
    """Parameters that are missing are empty."""
    holds: str = ""
    skips: str = ""
    found: Any = None
    """What the query answers when nothing is locked; else its rows are counted."""
    skipped: Any = None
    shared: bool = False
    """KEY SHARE: what changes no key does not wait."""

    @property
    def nth(self) -> int:
        return [lock for lock in LOCKS if lock.query == self.query].index(self)


def row(table: str, where: str) -> tuple[str, str]:
    """FOR UPDATE of a row: a weaker lock has to wait for it, and it is held when the query comes."""
    found = f"select 1 from perdure.{table} where {where}"
    return f"{found} for key share", f"{found} for update"


def held(query: str, table: str, where: str, /, **args: Any) -> Lock:
    return Lock(query, args, holds=row(table, where)[0])


def claimed(query: str, table: str, where: str, /, **args: Any) -> Lock:
    """The rows are updated or deleted by the query itself, so that only passing over them proves anything."""
    return Lock(query, args, skips=row(table, where)[1])


def picked(query: str, table: str, where: str, /, **args: Any) -> Lock:
    return Lock(query, args, *row(table, where))


def fenced(query: str, /, **args: Any) -> Lock:
    return Lock(query, {"session": LIVE, **args}, holds=SESSION, shared=True)


def kept(query: str, /, **args: Any) -> Lock:
    """KEY SHARE on a run: it cannot end."""
    return Lock(query, args, holds=f"delete from perdure.run_queue where run_id = '{RUN}'", shared=True)


def runs(*workflows: str, limit: int = 10, flows: bool = True) -> dict[str, Any]:
    return {"session": LIVE, "workflows": [(1, name, "") for name in workflows], "limit": limit, "flows": flows}


def tasks(queue: str) -> dict[str, Any]:
    return {"session": LIVE, "kinds": [(1, queue, "t", 5)]}


RUN_LOCKED = f"select 1 from perdure.run_queue where run_id = '{RUN}' for update"
REMOVAL = {"id": JOB, "epoch": 1}
SENT = {"run_id": RUN, "ns": 1, "body": b"x"}
NOTE = (OWNED, 1, "w", NOW, NOW, b"", None)
MERGE = {"below": NOW, "into_s": 3_600, "limit": 10}
KEY = {"ns": 1, "key": "mine", "run_id": DONE, "input_hash": b"x"}
NEW_KEY = "insert into perdure.run_key (ns, key, run_id, input_hash)"
LOCKS = [
    fenced("commit_batch", number=1),
    fenced("commit_attributes", attributes=[(RUN, "{}")]),
    fenced("commit_batch_rest"),
    Lock(
        "commit_batch_rest",
        {"session": LIVE, "uses": [(RUN, 1, "", DIGEST)]},
        holds="delete from perdure.payload where ns = 1",
        shared=True,
    ),
    fenced("claim_runs", **runs("w")),
    claimed("claim_runs", "run_queue", f"run_id = '{RUN}'", **runs("w", flows=False)),
    claimed("claim_runs", "run_queue", f"run_id = '{FLOW}'", **runs()),
    fenced("claim_runs_with_messages", **runs("w")),
    claimed("claim_runs_with_messages", "run_queue", f"run_id = '{MAILED}'", **runs("m")),
    fenced("claim_suspect", **runs("w")),
    claimed("claim_suspect", "run_queue", f"run_id = '{SUSPECT}'", **runs("s", limit=1, flows=False)),
    fenced("claim_tasks", **tasks("due"), limit=10),
    claimed("claim_tasks", "task_queue", f"id = '{DUE}'", **tasks("due"), limit=10),
    fenced("adopt_tasks", ns=1, tasks=[(OWNED, 1)]),
    fenced("lock_tasks_past_start_deadline", limit=10),
    picked("lock_tasks_past_start_deadline", "task_queue", f"id = '{LATE}'", session=LIVE, limit=10),
    fenced("lock_runs_to_end", limit=10),
    picked("lock_runs_to_end", "run_queue", f"run_id = '{STUCK}'", session=LIVE, limit=10),
    fenced("lock_task_groups", **tasks("lined"), groups_per_kind=8),
    picked("lock_task_groups", "flow_control_group", f"id = '{TASKS}'", **tasks("lined"), groups_per_kind=8),
    fenced("lock_run_groups", groups_max=8, runs_per_group=8),
    picked("lock_run_groups", "flow_control_group", f"id = '{RUNS}'", session=LIVE, groups_max=8, runs_per_group=8),
    Lock("lock_keys", {"hashes": [41, 42]}, holds="select pg_advisory_xact_lock(42)"),
    claimed("claim_from_groups", "task_queue", f"id = '{LINED}'", session=LIVE, groups=[(TASKS, 1)]),
    claimed("admit_runs", "run_queue", f"run_id = '{QUEUED}'", groups=[(RUNS, 1)]),
    picked("lock_stale_groups", "flow_control_group", f"id = '{TASKS}'", limit=10),
    claimed("wake_groups", "flow_control_group", f"id = '{BLOCKED}'", keys=[(1, "key")]),
    picked("lock_ungrouped_tasks", "task_queue", f"id = '{UNLINED}'", ns=1, scope="queue", name="unlined", limit=10),
    claimed("update_attempts", "task_queue", f"id = '{OWNED}'", session=LIVE, attempts=[NOTE]),
    held("select_owned_tasks", "task_queue", f"id = '{OWNED}'", sessions=[LIVE]),
    Lock(
        "delete_expired_sessions",
        {},
        skips=f"select 1 from perdure.engine_session where id = {EXPIRED} for key share",
    ),
    kept("send_message", **SENT, kind="signal", name="s"),
    Lock(
        "send_messages",
        {"runs": [(RUN, 1)], "messages": [(1, b"x", None, RUN, "signal", "s")], "pending_max": 10},
        holds=f"delete from perdure.run_queue where run_id = '{RUN}'",
        skips=RUN_LOCKED,
        found=[([0],)],
        skipped=[([3],)],
        shared=True,
    ),
    held("pause_run", "run_queue", f"run_id = '{RUN}'", **SENT, by="ada", reason=None),
    held("delete_run", "run", f"run_id = '{DONE}'", run_id=DONE, ns=1, low=DONE, high=DONE),
    held("delete_expired", "run", f"run_id = '{DONE}'", **REMOVAL, batch=10),
    held("delete_expired", "retention_job", f"id = '{JOB}'", **REMOVAL, batch=10),
    claimed("claim_bulk_job", "bulk_job", f"id = '{JOB}'", session=LIVE),
    held("record_bulk_runs", "bulk_job", f"id = '{ENDED_JOB}'", session=LIVE, id=ENDED_JOB, runs=[(RUN, "done", "")]),
    kept("resolve_promise", **SENT, name="p", authorized=True, question=b"", pending_max=10),
    kept("ask_update", **SENT, id="u", name="n", pending_max=10),
    kept("send_message_once", **SENT, key="k", hash=b"h", name="s", pending_max=10),
    kept("cancel_runs", run_ids=[RUN], body=b"x"),
    claimed("move_runs", "run_queue", f"run_id = '{RUN}'", ns=1, workflow="w", version="", to="v2", limit=10),
    kept("hold_approval", run_id=RUN, ns=1, name="approval"),
    held("hold_approval", "promise", f"run_id = '{RUN}' and name = 'approval'", run_id=RUN, ns=1, name="approval"),
    kept("hold_run", run_id=RUN, ns=1),
    Lock(
        "resolve_event_waits",
        {"waits": [(RUN, "event", b"x", 1, b"")]},
        holds=f"delete from perdure.run_queue where run_id = '{RUN}'",
        skips=RUN_LOCKED,
        found=[([1], [])],
        skipped=[([], [1])],
        shared=True,
    ),
    Lock(
        "lock_used_payloads",
        {"places": [(1, "", DIGEST)]},
        holds="delete from perdure.payload where ns = 1",
        shared=True,
    ),
    picked("lock_payloads_to_check", "payload", "ns = 1", urls=[], limit=10),
    Lock(
        "lock_announced_objects",
        {"ns": 1, "sha256": [DIGEST]},
        holds=f"select pg_advisory_xact_lock(hashtextextended('1 {DIGEST.hex()}', 7))",
    ),
    claimed(
        "take_payload_garbage",
        "payload_garbage",
        "store = 'file:///x/y'",
        urls=["file:///x"],
        limit=10,
        again_s=1.0,
    ),
    picked("claim_events", "named_event", "name = 'e'", limit=10),
    picked("due_schedules", "schedule", "name = 's'", limit=10),
    held("schedule_to_start", "schedule", "name = 's'", ns=1, name="s"),
    held("lock_schedule", "schedule", "name = 's'", ns=1, name="s"),
    held("lock_calendar", "calendar", "name = 'c'", ns=1, name="c"),
    held("lock_schedules_page", "schedule", "name = 's'", ns=1, after_id=0, limit=10),
    Lock(
        "lock_deferred_start_key", {"key": "a key"}, holds="select pg_advisory_xact_lock(hashtextextended('a key', 5))"
    ),
    held("lock_deferred_start", "deferred_start", "key = 'k'", ns=1, workflow="w", key="k"),
    claimed("claim_deferred_starts", "deferred_start", "key = 'k'", limit=10, lease_s=1.0),
    claimed(
        "claim_notifications", "notification", "rule_id = 1 and status = 'pending'", per_rule=8, limit=10, lease_s=1.0
    ),
    claimed("claim_hooks", "notification", "rule_id = 0", limit=10, lease_s=1.0),
    Lock("note_late", {"limit": 10}, skips=row("notification_rule", "id = 1")[1], found=[(6,)], skipped=[(0,)]),
    claimed("sweep_notifications", "notification", "status = 'done'", kept_s=60.0, limit=10),
    claimed("claim_sql_requests", "sql_request", "name = 'asked'", limit=10, lease_s=1.0),
    claimed("claim_sql_start", "sql_request", "name = 'asked'", id=1, lease_s=1.0),
    picked("claim_event_looks", "event_look", f"run_id = '{RUN}'", limit=10),
    Lock("lock_found_events", {"ids": [1]}, holds="select 1 from perdure.named_event where id = 1 for share"),
    claimed("claim_event_starts", "event_start", "workflow = 'subscribed'", limit=10, lease_s=1.0),
    held("lock_event_start", "event_start", "workflow = 'subscribed'", event_id=1, workflow="subscribed"),
    held("lock_dedup", "dedup", "key = 'old'", ns=1, workflow="w", key="old"),
    claimed("delete_expired_dedups", "dedup", "key = 'old'", limit=10),
    picked(
        "lock_lasting_dedups", "dedup", "key = 'until its end'", after_ns=0, after_workflow="", after_key="", limit=10
    ),
    Lock(
        "lock_flow_control_rules",
        {},
        holds="select pg_advisory_xact_lock(hashtextextended('perdure.flow_control_rule', 6))",
    ),
    *(
        Lock(query, MERGE, holds="select pg_advisory_xact_lock(hashtext('perdure.run_counts'))")
        for query in ("merge_run_counts", "merge_run_durations")
    ),
    *(
        Lock(f"merge_{table}s", MERGE, skips=row(table, "ns = 1")[1], found=[(1,)], skipped=[(0,)])
        for table in ("run_count", "run_duration")
    ),
    Lock("lock_payload_keys", {}, holds="select pg_advisory_xact_lock(hashtext('perdure.payload_key'))"),
    Lock("lock_migrations", {}, holds="select pg_advisory_xact_lock(7308895158390189421)"),
    Lock("claim_free_key", {**KEY, "key": "free"}, holds=f"{NEW_KEY} values (1, 'free', '{ANY}', '')"),
    Lock("take_back_key", KEY, holds="select 1 from perdure.run_key where key = 'mine' for no key update"),
]


def locks_in(sql: str) -> list[re.Match[str]]:
    sql = re.sub(r"--[^\n]*", "", sql)
    return list(re.finditer(r"\bfor (?:no key )?(?:key )?(?:update|share)\b|\bpg_\w*advisory\w*lock\w*", sql))


LOCKS_IN_FUNCTIONS = {"delete_run": 1, "delete_expired": 2}
"""Of the function that the query calls."""
LOCKS_OF_CHANGES = {"claim_free_key": 1, "take_back_key": 1}
"""Of the row that the query writes, which others wait for on purpose."""


def test_every_lock_of_every_query_has_its_proof_here() -> None:
    there = {name: len(found) for name, query in queries().items() if (found := locks_in(query.sql))}
    assert dict(Counter(lock.query for lock in LOCKS)) == {**there, **LOCKS_IN_FUNCTIONS, **LOCKS_OF_CHANGES}


def test_no_lock_is_taken_outside_of_the_queries() -> None:
    for file in Path(perdure.store.__path__[0]).rglob("*.py"):
        assert not re.findall(r"\bfor (?:key )?(?:update|share)\b.*\"|advisory_\w*lock", file.read_text()), file


# -- with two connections -----------------------------------------------------------------------------------------------


class Sides:
    """Two connections, and a third one that sees who waits for whom."""

    def __init__(self, one: Any, two: Any, observer: Any) -> None:
        self.one, self.two, self.observer = one, two, observer

    async def run(self, c: Any, lock: Lock) -> tuple[int, list[tuple[Any, ...]]]:
        """How many rows the query changed or found, and what it answered."""
        query = queries()[lock.query]
        statement = await c.prepare(query.sql)
        rows = await statement.fetch(*query.bind({**dict.fromkeys(query.columns, ()), **lock.args}))
        return int(statement.get_statusmsg().split()[-1]), [tuple(r) for r in rows]

    async def waits(self, statement: str) -> asyncio.Task[Any]:
        """The second connection executes this and is blocked by the first."""
        waiting = asyncio.create_task(self.two.execute(statement))
        pids = self.two.get_server_pid(), self.one.get_server_pid()

        async def is_decided() -> bool:
            return waiting.done() or await self.observer.fetchval("select $2 = any(pg_blocking_pids($1))", *pids)

        await until(is_decided)
        assert not waiting.done(), f"it did not have to wait: {statement}"
        return waiting


@pytest.fixture(scope="module")
def filled(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    """One database for all of them: every test rolls back what it did."""
    name = f"locks_{os.getpid()}"
    dsn = cluster.create_database(name, template=migrated_template)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _fill(dsn)).result()
    yield dsn
    cluster.drop_database(name)


async def _fill(dsn: str) -> None:
    c = await asyncpg.connect(dsn)
    await c.execute(SETUP)
    await c.close()


@pytest.fixture
async def sides(filled: str) -> AsyncIterator[Sides]:
    made = [await asyncpg.connect(filled, server_settings={"lock_timeout": "20s"}) for _ in range(3)]
    yield Sides(*made)
    for c in made:
        await c.close()


def names(lock: Lock) -> str:
    return f"{lock.query}-{lock.nth}"


@pytest.mark.parametrize("lock", LOCKS, ids=names)
async def test_a_lock_holds_off_what_it_must_and_passes_over_what_others_hold(sides: Sides, lock: Lock) -> None:
    assert lock.holds or lock.skips
    if lock.holds:
        await hold(sides, lock)
    if lock.skips:
        await skip(sides, lock)


async def hold(sides: Sides, lock: Lock) -> None:
    transaction = sides.one.transaction()
    await transaction.start()
    _, answer = await sides.run(sides.one, lock)
    if lock.found is not None:
        assert answer == lock.found
    if lock.shared:
        await let_through(sides, lock.holds)
    other = sides.two.transaction()
    await other.start()
    waiting = await sides.waits(lock.holds)
    await transaction.rollback()
    await waiting
    await other.rollback()


async def let_through(sides: Sides, statement: str) -> None:
    """What changes no key, as a heartbeat or a claim, need not wait for KEY SHARE."""
    found = re.fullmatch(r"delete from (\S+) where (.*)", statement)
    assert found is not None
    async with sides.two.transaction():
        assert await sides.two.fetch(f"select 1 from {found[1]} where {found[2]} for no key update nowait")


async def skip(sides: Sides, lock: Lock) -> None:
    free = sides.one.transaction()
    await free.start()
    count, answer = await sides.run(sides.one, lock)
    assert count > 0
    if lock.found is not None:
        assert answer == lock.found
    await free.rollback()
    holder = sides.two.transaction()
    await holder.start()
    assert await sides.two.fetch(lock.skips)
    asking = asyncio.create_task(sides.run(sides.one, lock))

    async def is_decided() -> bool:
        return asking.done() or await is_blocked(sides.observer, sides.one)

    await until(is_decided)
    if not asking.done():
        await holder.rollback()
        await asking
        pytest.fail("it waited for a row that another transaction holds")
    assert await asking == ((0, []) if lock.skipped is None else (1, lock.skipped))
    await holder.rollback()


# -- rows that move while a commit waits for them -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ({"reports": [(OWNED, 1, b"x")]}, []),
        (
            {"requeued": [requeued_row(OWNED, 2, 1, run_id=RUN, started_at=None, finished_at=NOW)]},
            [("pending", 2, None)],
        ),
    ],
    ids=["reported", "requeued"],
)
async def test_the_end_of_an_attempt_is_written_while_its_heartbeat_is(
    sides: Sides, ends: dict[str, Any], left: list[tuple[Any, ...]]
) -> None:
    """The heartbeat gives the row a new place; a commit that looks for the old one finds nothing, and the task never ends."""
    beat, commit = sides.one.transaction(), sides.two.transaction()
    await beat.start()
    await commit.start()
    try:
        assert (await sides.run(sides.one, Lock("update_attempts", {"session": LIVE, "attempts": [NOTE]})))[0] == 1
        committing = asyncio.create_task(sides.run(sides.two, Lock("commit_batch_rest", {"session": LIVE, **ends})))
        waiting = asyncio.create_task(until(lambda: is_blocked(sides.observer, sides.two)))
        await asyncio.wait((waiting, committing), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert not committing.done(), await committing
        await beat.commit()
        await committing
        rows = await sides.two.fetch("select status, attempt, owner from perdure.task_queue where id = $1", OWNED)
        assert [tuple(r) for r in rows] == left
    finally:
        await commit.rollback()
