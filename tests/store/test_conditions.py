"""Conditions of the store's statements, each with the row that it must leave alone beside the one that it must take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.core import ids
from perdure.core.flow_control.groups import FlowControlRules, task_group
from perdure.core.flow_control.options import FlowControlSpec, LimitOption
from perdure.core.message_life import KEPT, InboxKind
from perdure.core.retry import TaskOptions
from perdure.engine.commits.rows import AnswerRow, Batch, MessageRow, PromiseRow, ReportRow
from perdure.store import flow_control
from perdure.store.connections import connect
from perdure.store.postgres import PostgresStore
from perdure.store.queries import execute, fetch, fetch_value
from perdure.wire.codec import encode_options
from tests.fakes.rows import requeued_row, start_row

NS = 1
RUN, OTHER, THIRD = (ids.run_id(n, 0, n) for n in (1, 2, 3))


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    one = PostgresStore(dsn)
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def c(dsn: str) -> AsyncIterator[Any]:
    """A connection as the store makes it: ids are bytes, times microseconds."""
    made = await connect(dsn)
    yield made
    await made.close()


async def add_run(c: Any, run_id: bytes, owner: int | None = None, ns: int = NS, **columns: Any) -> None:
    values = {
        "run_id": run_id,
        "ns": ns,
        "workflow": "w",
        "version": "v",
        "status": "pending" if owner is None else "running",
        "owner": owner,
    } | columns
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    await c.execute(
        f"insert into perdure.run_queue ({', '.join(values)}, created_at, wake_at) values ({places}, now(), now())",
        *values.values(),
    )


async def add_task(c: Any, seq: int, owner: int | None = None, expires: str = "null", **columns: Any) -> bytes:
    task_id = ids.derive(RUN, ids.TASK, seq)
    values = {
        "id": task_id,
        "ns": NS,
        "run_id": RUN,
        "seq": seq,
        "name": "t",
        "queue": "q",
        "status": "pending" if owner is None else "dispatched",
        "attempt": 1,
        "lost": 0,
        "owner": owner,
        "options": encode_options(TaskOptions()),
        "input": b"{}",
    } | columns
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    await c.execute(
        f"insert into perdure.task_queue ({', '.join(values)}, run_at, scheduled_at, start_deadline_at) values ({places}, now(), now(), {expires})",
        *values.values(),
    )
    return task_id


async def session(store: PostgresStore, name: str = "engine") -> int:
    return (await store.register(name, 60, 5)).id


# -- claims -------------------------------------------------------------------------------------------------------------


async def test_a_task_whose_time_to_begin_is_over_is_not_claimed(store: PostgresStore, c: Any) -> None:
    me = await session(store)
    late = await add_task(c, 0, expires="now() - interval '1 second'")
    wanted = [await add_task(c, 1, expires="now() + interval '1 hour'"), await add_task(c, 2)]
    claimed = await fetch(c, "claim_tasks", session=me, kinds=[(NS, "q", "t", 10)], limit=10)
    assert sorted(r["id"] for r in claimed) == sorted(wanted)
    assert [r["id"] for r in await fetch(c, "lock_tasks_past_start_deadline", session=me, limit=10)] == [late]


async def test_a_task_in_a_line_whose_time_to_begin_is_over_is_not_claimed(store: PostgresStore, c: Any) -> None:
    me = await session(store)
    line = task_group(FlowControlSpec(limits=(LimitOption(max=9),)), NS, "q", "t", "w", b"{}")
    await flow_control.put_groups(c, [line])
    await add_task(c, 0, expires="now() - interval '1 second'", group_id=line.id)
    wanted = await add_task(c, 1, expires="now() + interval '1 hour'", group_id=line.id)
    found = await flow_control.claim_from_lines(c, me, [((NS, "q", "t"), 9)], 9, FlowControlRules({}))
    assert [t.id for t in found.tasks] == [wanted]


async def test_tasks_are_claimed_of_the_right_namespace_queue_and_name_and_never_out_of_a_line(
    store: PostgresStore, c: Any
) -> None:
    me = await session(store)
    wanted = await add_task(c, 0)
    await add_task(c, 1, ns=2)
    await add_task(c, 2, queue="other")
    await add_task(c, 3, name="other")
    await add_task(c, 4, group_id=RUN)
    await add_task(c, 5, owner=me + 1)
    claimed = await fetch(c, "claim_tasks", session=me, kinds=[(NS, "q", "t", 10)], limit=10)
    assert [r["id"] for r in claimed] == [wanted]


async def test_runs_are_claimed_when_they_are_due_and_not_stuck_and_of_code_that_is_at_hand(
    store: PostgresStore, c: Any
) -> None:
    me = await session(store)
    await add_run(c, RUN)
    await add_run(c, OTHER, workflow="unknown")
    await add_run(c, THIRD, version="flow-1", kind="flow")
    await add_run(c, ids.run_id(4, 0, 4), ns=2)
    await add_run(c, ids.run_id(5, 0, 5), stuck="a reason")
    await add_run(c, ids.run_id(6, 0, 6), owner=me + 1)
    await add_run(c, ids.run_id(7, 0, 7))
    await c.execute(
        "update perdure.run_queue set wake_at = now() + interval '1 hour' where run_id = $1", ids.run_id(7, 0, 7)
    )

    async def claimed(flows: bool, with_messages: bool = False) -> list[bytes]:
        found = await store.claim_runs(me, [(NS, "w", "")], 10, with_messages=with_messages, flows=flows)
        await c.execute("update perdure.run_queue set owner = null where owner = $1", me)
        return sorted(r.run_id for r in found)

    assert await claimed(flows=False) == [RUN]
    await c.execute("update perdure.run_queue set wake_at = now() where run_id = any($1)", [RUN])
    assert await claimed(flows=True) == [RUN, THIRD]


async def test_a_run_with_mail_is_claimed_unless_it_waits_in_line_or_is_stuck_or_its_code_is_elsewhere(
    store: PostgresStore, c: Any
) -> None:
    me = await session(store)
    runs = {
        name: ids.run_id(n, 0, n)
        for n, name in enumerate(("plain", "in line", "let in", "stuck", "elsewhere", "owned", "silent"), 1)
    }
    await add_run(c, runs["plain"])
    await add_run(c, runs["in line"], group_id=RUN)
    await add_run(c, runs["let in"], group_id=RUN)
    await add_run(c, runs["stuck"], stuck="a reason")
    await add_run(c, runs["elsewhere"], workflow="unknown")
    await add_run(c, runs["owned"], owner=me + 1)
    await add_run(c, runs["silent"])
    await c.execute("update perdure.run_queue set admitted_at = now() where run_id = $1", runs["let in"])
    await c.execute("update perdure.run_queue set wake_at = 'infinity'")
    for name in runs.keys() - {"silent"}:
        await c.execute("insert into perdure.inbox (ns, run_id, body, kind) values (1, $1, '', 'signal')", runs[name])
    found = await store.claim_runs(me, [(NS, "w", "")], 10, with_messages=True, flows=True)
    assert sorted(r.run_id for r in found) == sorted([runs["plain"], runs["let in"]])
    assert {r.epoch for r in found} == {1}, "one more than before: reports of earlier epochs are told apart"


# -- commits --------------------------------------------------------------------------------------------------------------


async def test_only_the_attempt_that_is_claimed_and_its_engine_may_report(store: PostgresStore, c: Any) -> None:
    me, other = await session(store), await session(store, "other")
    await add_run(c, RUN)
    tasks = [
        await add_task(c, 0, owner=me, attempt=2),
        await add_task(c, 1, owner=me),
        await add_task(c, 2, owner=other),
    ]
    batch = Batch()
    for task_id in tasks:
        batch.reports.append(ReportRow(task_id, 1, b"the end"))
    await store.commit(me, 1, batch)
    left = [r["id"] for r in await c.fetch("select id from perdure.task_queue order by seq")]
    assert left == [tasks[0], tasks[2]]
    assert await c.fetchval("select count(*) from perdure.inbox") == 1


async def test_only_the_engine_that_claimed_a_task_may_put_it_back(store: PostgresStore, c: Any) -> None:
    me, other = await session(store), await session(store, "other")
    tasks = [await add_task(c, 0, owner=me), await add_task(c, 1, owner=other)]
    batch = Batch()
    for task_id in tasks:
        batch.requeued.append(requeued_row(task_id, 2, 1))
    await store.commit(me, 1, batch)
    found = await c.fetch("select owner, attempt from perdure.task_queue order by seq")
    assert [tuple(r) for r in found] == [(None, 2), (other, 1)]


async def test_an_attempt_that_was_counted_as_lost_is_not_put_back_once_more(store: PostgresStore, c: Any) -> None:
    """An engine lost its session before it could write that attempt 2 failed. The reaper made it attempt 3, and the same engine has claimed
    that under its next session. What it still has to write is about attempt 2; attempt 3 must not begin twice."""
    me = await session(store)
    await add_task(c, 0, owner=me, attempt=3)
    batch = Batch()
    batch.requeued.append(requeued_row(await c.fetchval("select id from perdure.task_queue"), 3, 1, ended=2))
    await store.commit(me, 1, batch)
    assert tuple(await c.fetchrow("select owner, attempt from perdure.task_queue")) == (me, 3)
    assert await c.fetchval("select count(*) from perdure.task_attempt") == 0


async def test_a_start_under_a_key_that_is_taken_writes_nothing(store: PostgresStore, c: Any) -> None:
    me = await session(store)
    batch = Batch()
    for run_id, key in ((RUN, "k"), (OTHER, None)):
        batch.starts.append(start_row(run_id, key=key))
    await store.commit(me, 1, batch)
    again = Batch()
    again.starts.append(start_row(THIRD, key="k"))
    await store.commit(me, 2, again)
    for table in ("run_queue", "history"):
        assert [r["run_id"] for r in await c.fetch(f"select run_id from perdure.{table} order by 1")] == [RUN, OTHER]


async def test_mail_goes_to_runs_that_are_there_and_to_those_that_continued(store: PostgresStore, c: Any) -> None:
    me = await session(store)
    await add_run(c, RUN)
    await ended(c, OTHER, successor=RUN)
    await ended(c, THIRD)
    batch = Batch()
    for run_id in (RUN, OTHER, THIRD):
        batch.messages.append(MessageRow(run_id, b"mail", "signal", "s"))
    await store.commit(me, 1, batch)
    assert [r["run_id"] for r in await c.fetch("select run_id from perdure.inbox order by 1")] == [RUN, OTHER]


async def ended(c: Any, run_id: bytes, successor: bytes | None = None) -> None:
    await c.execute(
        "insert into perdure.run (run_id, ns, workflow, version, status, created_at, finished_at, epoch, events, successor)"
        " values ($1, 1, 'w', 'v', 'success', now(), now(), 1, 1, $2)",
        run_id,
        successor,
    )


@pytest.mark.parametrize(
    ("authorized", "spec", "is_open"),
    [
        (False, '{"assignees": ["ada"], "quorum": 1}', True),
        (True, '{"assignees": ["ada"], "quorum": 1}', False),
        (False, '{"quorum": 2}', True),
        (False, '{"quorum": 1}', False),
    ],
)
async def test_an_answer_before_the_question_stands_unless_certain_people_were_to_give_it(
    store: PostgresStore, c: Any, authorized: bool, spec: str, is_open: bool
) -> None:
    me = await session(store)
    await add_run(c, RUN, owner=me)
    await c.execute(
        "insert into perdure.promise (run_id, name, ns, created_at, resolved_at, authorized, asked) values ($1, 'p', 1, now(), now(), $2, false)",
        RUN,
        authorized,
    )
    batch = Batch()
    batch.promises.append(PromiseRow(RUN, "p", NS, "approval", spec, b"question", False))
    await store.commit(me, 1, batch)
    assert (await c.fetchval("select resolved_at from perdure.promise") is None) is is_open


async def test_the_first_answer_to_an_update_stands(store: PostgresStore, c: Any) -> None:
    me = await session(store)
    for number, value in enumerate((b"first", b"second"), 1):
        batch = Batch()
        batch.answers.append(AnswerRow(RUN, "u", NS, value, None))
        await store.commit(me, number, batch)
    assert await c.fetchval("select value from perdure.update_answer") == b"first"


# -- upkeep ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", InboxKind)
async def test_requests_to_runs_that_are_gone_are_swept_or_passed_on_and_what_was_acknowledged_is_not(
    c: Any, kind: InboxKind
) -> None:
    await add_run(c, RUN)
    await ended(c, OTHER, successor=RUN)
    await ended(c, THIRD)
    for run_id in (RUN, OTHER, THIRD):
        for age_s in (60.0, 0.0):
            await c.execute(
                "insert into perdure.inbox (ns, run_id, body, kind, at) values (1, $1, '', $2, now() - $3 * interval '1 second')",
                run_id,
                kind,
                age_s,
            )
    await execute(c, "delete_orphaned_messages")
    left = [r["run_id"] for r in await c.fetch("select run_id from perdure.inbox order by 1")]
    kept = [RUN, RUN, OTHER, OTHER, THIRD]
    assert left == ([*kept, THIRD] if kind in KEPT else kept), "a moment old: its run may be about to be written"
    await execute(c, "forward_orphaned_messages")
    passed_on = [r["run_id"] for r in await c.fetch("select run_id from perdure.inbox order by 1")]
    # Nobody holds the run for a request to stop: only those can miss its end.
    assert passed_on == ([RUN, RUN, RUN, OTHER, THIRD] if kind in (InboxKind.CANCEL, InboxKind.TERMINATE) else left)


@pytest.mark.parametrize("member", ["waiting", "under way", "a run", "none"])
async def test_a_line_goes_when_nothing_is_left_in_it(store: PostgresStore, c: Any, member: str) -> None:
    me = await session(store)
    line = task_group(FlowControlSpec(limits=(LimitOption(max=1),)), NS, "q", "t", "w", b"{}")
    await flow_control.put_groups(c, [line])
    if member == "a run":
        await add_run(c, RUN, group_id=line.id)
    elif member != "none":
        await add_task(c, 0, owner=me if member == "under way" else None, group_id=line.id)
    await execute(c, "delete_empty_groups", ids=[line.id])
    assert await c.fetchval("select count(*) from perdure.flow_control_group") == (0 if member == "none" else 1)


@pytest.mark.parametrize(
    ("escalates", "names", "seen"),
    [
        ("now() - interval '1 second'", ["lead"], True),
        ("now() + interval '1 hour'", ["lead"], False),
        ("now() + interval '1 hour'", ["ada"], True),
        ("null", ["eve"], False),
        ("null", None, True),
    ],
)
async def test_an_approval_is_listed_for_those_who_may_answer_it_now(
    c: Any, escalates: str, names: list[str] | None, seen: bool
) -> None:
    await add_run(c, RUN)
    await c.execute(
        "insert into perdure.promise (run_id, name, ns, created_at, kind, spec, assignees, quorum, escalate_at, escalate_to)"
        f" values ($1, 'p', 1, now(), 'approval', '{{}}', '{{ada}}', 1, {escalates}, '{{lead}}')",
        RUN,
    )
    (row,) = await fetch(
        c,
        "list_approvals",
        ns=NS,
        names=names,
        workflow=None,
        after_at=None,
        after_run_id=None,
        after_name=None,
        limit=10,
    )
    assert row["matches"] is seen


# -- people and time --------------------------------------------------------------------------------------------------


async def test_a_message_reaches_runs_of_its_own_namespace_alone(c: Any) -> None:
    await add_run(c, RUN, ns=2)
    to: dict[str, Any] = {"run_id": RUN, "ns": NS, "body": b"x"}
    for query, args in (
        ("send_message", {**to, "kind": "signal", "name": "s"}),
        ("resolve_promise", {**to, "name": "p", "authorized": True, "question": b"", "pending_max": 10}),
        ("ask_update", {**to, "id": "u", "name": "n", "pending_max": 10}),
        ("send_messages", {"runs": [(RUN, NS)], "messages": [(1, b"x", None, RUN, "signal", "s")], "pending_max": 10}),
        ("send_message_once", {**to, "key": "k", "hash": b"h", "name": "s", "pending_max": 10}),
    ):
        await fetch(c, query, **args)
        assert await c.fetchval("select count(*) from perdure.inbox") == 0, query
    await fetch(c, "send_message", run_id=RUN, ns=2, body=b"x", kind="signal", name="s")
    assert await c.fetchval("select count(*) from perdure.inbox") == 1


async def test_a_task_that_runs_does_not_expire(store: PostgresStore, c: Any) -> None:
    me = await session(store)
    await add_task(c, 0, owner=me, expires="now() - interval '1 second'")
    await add_task(c, 1, expires="now() + interval '1 hour'")
    late = await add_task(c, 2, expires="now() - interval '1 second'")
    assert [r["id"] for r in await fetch(c, "lock_tasks_past_start_deadline", session=me, limit=10)] == [late]


async def test_a_run_is_reopened_as_it_was_read_and_once(c: Any) -> None:
    await ended(c, RUN)

    async def reopened(ns: int, events: int) -> bool:
        return bool(
            await fetch_value(
                c,
                "retry_run",
                run_id=RUN,
                ns=ns,
                events=events,
                added=1,
                body=b"",
                group_id=None,
                attributes=None,
                pinned=False,
            )
        )

    assert not await reopened(NS, 1), "it succeeded"
    await c.execute("update perdure.run set status = 'failed'")
    assert not await reopened(NS, 2), "it has changed since it was read"
    assert not await reopened(2, 1), "it is of another namespace"
    await c.execute("update perdure.run set successor = $1", OTHER)
    assert not await reopened(NS, 1), "it has a successor"
    await c.execute("update perdure.run set successor = null")
    assert await reopened(NS, 1)
    assert not await reopened(NS, 1)


# -- retries --------------------------------------------------------------------------------------------------------------


async def retry_rest(c: Any, *promises: tuple[Any, ...]) -> None:
    nothing: dict[str, Any] = {"stale_ids": [], "stale_seqs": [], "tasks": [], "states": [], "released": []}
    await execute(c, "retry_run_rest", run_id=RUN, ns=NS, promises=list(promises), **nothing)


async def test_a_retry_returns_messages_in_their_order_and_drops_old_requests(c: Any) -> None:
    await add_run(c, RUN)
    await add_run(c, OTHER)
    aside = (
        "insert into perdure.set_aside_message (id, ns, run_id, kind, name, body, at, reason)"
        " values ($1, 1, $2, 'signal', 's', $3, now() - interval '1 day', 'failed')"
    )
    for number, run_id, body in ((3, RUN, b"third"), (1, RUN, b"first"), (2, RUN, b"second"), (4, OTHER, b"other")):
        await c.execute(aside, number, run_id, body)
    for kind in InboxKind:
        for run_id in (RUN, OTHER):
            await c.execute("insert into perdure.inbox (ns, run_id, body, kind) values (1, $1, '', $2)", run_id, kind)
    await retry_rest(c)
    rows = await c.fetch(
        "select kind, name, body, at < now() - interval '1 hour' as is_old from perdure.inbox where run_id = $1 order by id",
        RUN,
    )
    asked = [InboxKind.CANCEL, InboxKind.TERMINATE, InboxKind.PAUSE]
    assert [r["kind"] for r in rows[:-3]] == [kind for kind in InboxKind if kind not in asked]
    assert [(r["kind"], r["name"], r["body"]) for r in rows[-3:]] == [
        ("signal", "s", body) for body in (b"first", b"second", b"third")
    ]
    assert all(r["is_old"] for r in rows[-3:]), "they came when they came"
    assert await c.fetchval("select array_agg(body) from perdure.set_aside_message") == [b"other"]
    assert await c.fetchval("select count(*) from perdure.inbox where run_id = $1", OTHER) == len(InboxKind)


async def test_a_retry_opens_what_the_code_still_asks_with_its_votes(c: Any) -> None:
    await add_run(c, RUN)
    for name, resolved in (("open", "null"), ("taken back", "null"), ("decided", "now()"), ("other", "now()")):
        await c.execute(
            "insert into perdure.promise (run_id, name, ns, created_at, resolved_at, kind, spec, assignees, quorum, question, asked)"
            f" values ($1, $2, 1, now(), {resolved}, 'approval', '{{}}', '{{dan}}', 1, 'q', false)",
            RUN,
            name,
        )
    await c.execute(
        "insert into perdure.vote (run_id, name, who, approved, via) values ($1, 'open', 'dan', true, 'link')", RUN
    )
    spec = '{"assignees": ["ada"], "quorum": 1}'
    await retry_rest(
        c,
        ("open", False, "approval", spec, b"q", True, False, None),
        ("decided", False, "approval", spec, b"q", True, False, None),
        ("imported", True, "approval", spec, b"q", True, False, None),
        ("other", False, "approval", spec, b"another question", True, False, None),
    )
    rows = await c.fetch(
        "select name, asked, resolved_at is not null as has_value, assignees from perdure.promise order by 1"
    )
    assert [tuple(r.values()) for r in rows] == [
        ("decided", True, True, ["dan"]),
        ("imported", True, True, ["ada"]),
        ("open", True, False, ["dan"]),
        ("other", False, True, ["dan"]),
        ("taken back", False, False, ["dan"]),
    ]
    assert await c.fetchval("select count(*) from perdure.vote") == 1


async def test_a_retry_takes_its_key_back_unless_an_active_run_has_it(c: Any) -> None:
    await add_run(c, RUN)

    async def taken_back() -> bool:
        key = {"ns": NS, "key": "k", "run_id": RUN, "input_hash": b"h"}
        await execute(c, "claim_free_key", **key)
        return await fetch_value(c, "take_back_key", **key) is not None

    assert await taken_back(), "nobody has it"
    assert await taken_back(), "it has it itself"
    await ended(c, OTHER)
    await c.execute("update perdure.run_key set run_id = $1", OTHER)
    assert await taken_back(), "its run has ended"
    assert await c.fetchval("select run_id from perdure.run_key") == RUN
    await add_run(c, THIRD)
    await c.execute("update perdure.run_key set run_id = $1", THIRD)
    assert not await taken_back()
    assert await c.fetchval("select run_id from perdure.run_key") == THIRD


async def test_an_event_is_given_to_the_wait_that_asked_for_it(c: Any) -> None:
    await add_run(c, RUN)
    spec = '{"event": "e", "key": "k"}'
    insert = (
        "insert into perdure.promise (run_id, name, ns, created_at, kind, spec, event, question, asked)"
        " values ($1, $2, 1, perdure.clock(), 'event', $3, 'e', 'q', $4)"
    )

    async def given(name: str, question: bytes, event_id: int = 5) -> bool:
        waits = [(RUN, name, b"", event_id, question)]
        return bool((await fetch(c, "resolve_event_waits", waits=waits))[0]["won"])

    await c.execute(insert, RUN, "a", spec, True)
    await c.execute(insert, RUN, "asleep", spec, False)
    assert not await given("a", b"another question")
    assert not await given("asleep", b"q"), "its run has failed, and has not asked again"
    assert await given("a", b"q")
    assert not await given("a", b"q", 6), "the first one stands"
    await c.execute(insert, RUN, "b", spec, True)
    assert not await given("b", b"q"), "an earlier wait for the same got it"
    assert await given("b", b"q", 6)
    assert await c.fetchval("select array_agg(name order by id) from perdure.inbox") == ["a", "b"]
