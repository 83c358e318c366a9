"""Schedules on a real PostgreSQL: one run per nominal time whoever fires, and what people do to schedules meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api.schedules import ScheduleRequest
from perdure.core.calls import encode_json
from perdure.core.durations import datetime_of, us_of
from perdure.core.errors import Conflict, InvalidInput, NotFound, NotRegistered
from perdure.core.messages import CancelMessage
from perdure.core.schedules import parse_calendar, parse_spec
from perdure.engine.api.schedules import Schedules
from perdure.engine.services.schedules import PRUNE_S, Scheduler
from perdure.engine.settings import EngineSettings
from perdure.flows.scheduled import MISSED
from perdure.store.connections import Connections
from perdure.store.schedules import PostgresSchedules
from perdure.store.verify import verify
from perdure.wire.codec import decode_events, decode_message
from tests.fakes.engine_parts import EngineParts

NS = 1
HOUR_US = 3_600_000_000


class Bench:
    """Some schedulers on one database whose clock the test sets."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.c: Any = None
        self.pools: list[Connections] = []
        self.schedulers: list[Scheduler] = []
        self.drawn = 0

    async def open(self, engines: int = 1) -> None:
        self.c = await asyncpg.connect(self.dsn)
        await self.c.execute(
            "insert into perdure.workflow (ns, name, kind, current) values (1, 'report', 'code', 'v1'), (1, 'other', 'code', 'v7')"
        )
        for _ in range(engines):
            pool = Connections(self.dsn)
            await pool.open()
            self.pools.append(pool)
            self.schedulers.append(self._scheduler(PostgresSchedules(pool)))

    def _scheduler(self, store: PostgresSchedules) -> Scheduler:
        parts = EngineParts(settings=EngineSettings(retention_days=10.0))
        parts.context.new_run_id = self._new_run_id
        return Scheduler(parts.context, store, parts.flow_control)

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close()
        await self.c.close()

    def _new_run_id(self) -> bytes:
        self.drawn += 1
        return ids.run_id(1_790_000_000_000 + self.drawn // 3, 0, self.drawn * 7919)

    @property
    def use(self) -> Schedules:
        return Schedules(self.schedulers[0], NS, "ada")

    async def now(self) -> datetime:
        return datetime_of(await self.schedulers[0].store.clock_us())

    async def go_to(self, moment: datetime) -> None:
        offset_s = (moment - datetime.now(UTC)).total_seconds()
        for pool in self.pools:
            pool.clock_offset_s = offset_s

    async def put(self, name: str = "s", workflow: str = "report", **spec: Any) -> Any:
        request = ScheduleRequest(name=name, workflow=workflow, spec=parse_spec(spec), input=b'{"n":1}')
        return (await self.use.put(request))[0]

    async def fire_due(self) -> None:
        await self.schedulers[0].fire_due()

    async def fires(self, name: str = "s") -> list[tuple[datetime, str]]:
        return [(datetime_of(f.nominal_us), f.outcome) for f in await self.use.fires(name, None, 500)][::-1]

    async def outcomes(self, name: str = "s") -> list[str]:
        return [outcome for _, outcome in await self.fires(name)]

    async def runs(self) -> list[Any]:
        return list(await self.c.fetch("select * from perdure.run_queue order by run_id"))

    async def end_runs(self) -> None:
        await self.c.execute(
            """with gone as (delete from perdure.run_queue returning *)
               insert into perdure.run (run_id, ns, workflow, version, status, created_at, finished_at, epoch, events)
               select run_id, ns, workflow, version, 'success', created_at, now(), 1, 2 from gone"""
        )


@pytest.fixture
async def bench(dsn: str) -> AsyncIterator[Bench]:
    made = Bench(dsn)
    await made.open(4)
    yield made
    await made.close()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# -- firing --------------------------------------------------------------------------------------------------------


async def test_a_time_fires_once_with_its_run_and_the_schedule_moves_on(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:30"))
    view = await bench.put(cron="0 8 * * *")
    assert datetime_of(view.next_us) == at("2027-01-10T08:00")
    pause_s = await bench.schedulers[0].fire_due()
    assert pause_s is not None and 0 < pause_s <= 1800
    assert await bench.runs() == []
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    await bench.fire_due()
    (run,) = await bench.runs()
    assert (run["workflow"], run["version"], run["status"], run["attributes"]) == (
        "report",
        "v1",
        "pending",
        '{"schedule": "s"}',
    )
    (row,) = await bench.c.fetch("select * from perdure.history")
    (started,) = decode_events(row["body"])
    assert isinstance(started, ev.RunStarted)
    assert (started.schedule, started.nominal_us, started.input) == ("s", us_of(at("2027-01-10T08:00")), b'{"n":1}')
    view = await bench.use.get("s")
    assert (datetime_of(view.next_us or 0), view.fired, view.missed) == (at("2027-01-11T08:00"), 1, 0)
    assert await bench.fires() == [(at("2027-01-10T08:00"), "started")]


async def test_four_engines_that_race_start_one_run_per_nominal_time(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59:59"))
    for i in range(30):
        await bench.put(f"s{i}", every="1s", overlap="allow", missed="all")
    for second in range(1, 11):
        await bench.go_to(at("2027-01-10T08:00:00").replace(second=second))
        await asyncio.gather(*(s.fire_due() for s in bench.schedulers for _ in range(2)))
        await bench.fire_due()  # what one of them had locked while the others looked
    rows = await bench.c.fetch(
        "select schedule_id, count(*) as n, count(distinct run_id) as runs from perdure.schedule_fire group by 1"
    )
    assert len(rows) == 30
    assert {(r["n"], r["runs"]) for r in rows} <= {(11, 11), (12, 12)}
    assert len({r["n"] for r in rows}) == 1
    assert len(await bench.runs()) == sum(r["n"] for r in rows)
    assert all([(await bench.use.get(f"s{i}")).fired == rows[0]["n"] for i in range(30)])


async def test_a_look_that_fails_leaves_nothing_behind_and_the_one_at_fault_is_put_off(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put("good", cron="0 8 * * *")
    await bench.put("bad", cron="0 8 * * *")
    # A record that the database refuses: only whoever wrote past the checks could do this.
    await bench.c.execute("update perdure.schedule set attributes = '{\"a\":\"\\u0000\"}' where name = 'bad'")
    await bench.go_to(at("2027-01-10T08:00:01"))
    scheduler = bench.schedulers[0]
    for _ in range(4):
        await scheduler._fired()
    assert await bench.outcomes("good") == ["started"]
    assert await bench.outcomes("bad") == []
    bad = await bench.use.get("bad")
    assert bad.error is not None
    assert "the database refuses" in bad.error
    assert bad.next_us == us_of(at("2027-01-10T08:00"))
    assert bad.fire_us is not None
    assert bad.fire_us > us_of(at("2027-01-10T08:01"))
    await bench.c.execute("update perdure.schedule set attributes = null where name = 'bad'")
    await bench.go_to(at("2027-01-10T08:01:02"))
    await scheduler._fired()
    assert await bench.outcomes("bad") == ["started"]


async def test_a_spec_that_cannot_be_read_does_not_stand_in_the_way_of_others(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put("good", cron="0 8 * * *")
    await bench.put("later", cron="0 8 * * *")
    await bench.c.execute("update perdure.schedule set spec = '{\"moon\": \"full\"}' where name = 'later'")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    assert await bench.outcomes("good") == ["started"]
    error = await bench.c.fetchval("select error from perdure.schedule where name = 'later'")
    assert "moon" in error


async def test_a_workflow_that_is_not_there_is_said_and_the_time_is_missed(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(workflow="nobody", cron="0 8 * * *")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    view = await bench.use.get("s")
    assert view.error is not None
    assert "no workflow 'nobody'" in view.error
    assert (view.missed, datetime_of(view.next_us or 0)) == (1, at("2027-01-11T08:00"))
    assert await bench.outcomes() == ["missed"]
    await bench.c.execute("insert into perdure.workflow (ns, name, kind, current) values (1, 'nobody', 'code', 'v1')")
    await bench.go_to(at("2027-01-11T08:00:01"))
    await bench.fire_due()
    assert (await bench.use.get("s")).error is None
    assert await bench.outcomes() == ["missed", "started"]


async def test_the_version_is_the_one_that_is_current_when_it_fires(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap="allow")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    await bench.c.execute("update perdure.workflow set current = 'v2' where name = 'report'")
    await bench.go_to(at("2027-01-10T09:00:01"))
    await bench.fire_due()
    assert [r["version"] for r in await bench.runs()] == ["v1", "v2"]


async def test_a_one_shot_is_over_when_it_has_fired(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(at="2027-01-10T08:00:00Z")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    view = await bench.use.get("s")
    assert (view.state, view.next_us, await bench.outcomes()) == ("over", None, ["started"])
    with pytest.raises(InvalidInput, match="would never fire"):
        await bench.put("late", at="2027-01-10T07:00:00Z")


async def test_jitter_puts_a_firing_off_and_the_nominal_time_stays(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    view = await bench.put(cron="0 8 * * *", jitter="30m")
    nominal = us_of(at("2027-01-10T08:00"))
    assert view.next_us == nominal
    assert nominal < view.fire_us <= nominal + HOUR_US // 2
    await bench.go_to(datetime_of(view.fire_us - 1_000_000))
    await bench.fire_due()
    assert await bench.outcomes() == []
    await bench.go_to(datetime_of(view.fire_us + 1))
    await bench.fire_due()
    assert await bench.fires() == [(at("2027-01-10T08:00"), "started")]


async def test_a_deleted_namespace_fires_nothing(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(cron="0 8 * * *")
    await bench.c.execute("update perdure.namespace set deleted_at = now() where id = 1")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    assert await bench.runs() == []
    assert await bench.outcomes() == ["missed"]


# -- overlap -------------------------------------------------------------------------------------------------------


async def test_skip_starts_nothing_while_a_run_is_active(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap="skip")
    for hour in (8, 9, 10):
        await bench.go_to(at(f"2027-01-10T{hour:02}:00:01"))
        await bench.fire_due()
    assert await bench.outcomes() == ["started", "skipped", "skipped"]
    await bench.end_runs()
    await bench.go_to(at("2027-01-10T11:00:01"))
    await bench.fire_due()
    assert await bench.outcomes() == ["started", "skipped", "skipped", "started"]
    view = await bench.use.get("s")
    assert (view.fired, view.skipped) == (2, 2)


async def test_a_run_far_back_still_counts_however_many_times_were_skipped(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59:59"))
    await bench.put(every="1s", overlap="skip", missed="all")
    for minute in range(1, 4):
        await bench.go_to(at(f"2027-01-10T08:{minute:02}:00"))
        await bench.fire_due()
    outcomes = await bench.outcomes()
    assert outcomes.count("started") == 1
    assert len(outcomes) >= 180


async def test_allow_starts_whatever_else_is_active(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap="allow")
    for hour in (8, 9, 10):
        await bench.go_to(at(f"2027-01-10T{hour:02}:00:01"))
        await bench.fire_due()
    assert len(await bench.runs()) == 3


async def test_cancel_asks_the_active_run_to_stop_and_starts_the_next(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap="cancel")
    for hour in (8, 9):
        await bench.go_to(at(f"2027-01-10T{hour:02}:00:01"))
        await bench.fire_due()
    first, second = await bench.runs()
    (message,) = await bench.c.fetch("select * from perdure.inbox")
    assert message["run_id"] == first["run_id"] != second["run_id"]
    asked = decode_message(message["body"])
    assert isinstance(asked, CancelMessage)
    assert "starts the next run" in asked.reason


async def test_queue_puts_runs_into_a_line_of_their_own_in_the_order_of_their_times(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put("a", every="1h", overlap="queue", missed="all", window="1d")
    await bench.put("b", every="1h", overlap="queue")
    await bench.go_to(at("2027-01-10T12:00:01"))
    await bench.fire_due()
    rows = await bench.c.fetch(
        "select f.nominal_at, q.run_id, q.group_id, q.wake_at = 'infinity' as asleep from perdure.schedule_fire f "
        "join perdure.schedule s on s.id = f.schedule_id join perdure.run_queue q on q.run_id = f.run_id "
        "where s.name = 'a' order by f.nominal_at"
    )
    assert len(rows) == 5
    assert all(r["asleep"] for r in rows)
    assert len({r["group_id"] for r in rows}) == 1
    assert [r["run_id"] for r in rows] == sorted(r["run_id"] for r in rows)
    lines = await bench.c.fetch("select needs, kind, workflow from perdure.flow_control_group order by needs")
    assert [(x["kind"], x["workflow"]) for x in lines] == [("run", "report")] * 2
    assert '"schedule/a",1,"queue"' in lines[0]["needs"]
    assert '"schedule/b",1,"queue"' in lines[1]["needs"]


# -- missed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "outcomes"),
    [
        ("none", ["missed"] * 4),
        ("last", ["missed", "missed", "missed", "started"]),
        ("all", ["missed", "missed", "started", "started"]),
    ],
)
async def test_an_outage_is_made_up_for_as_the_policy_says(bench: Bench, missed: str, outcomes: list[str]) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap="allow", missed=missed, window="2h")
    await bench.go_to(at("2027-01-10T11:30"))
    await bench.fire_due()
    assert await bench.outcomes() == outcomes
    view = await bench.use.get("s")
    assert (view.missed, view.fired) == (outcomes.count("missed"), outcomes.count("started"))
    assert datetime_of(view.next_us or 0) == at("2027-01-10T12:00")


async def test_a_long_outage_is_caught_up_in_steps_and_counted_beyond_the_rows_that_are_written(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59:59"))
    await bench.put("all", every="1s", overlap="allow", missed="all", window="2m")
    await bench.put("last", every="1s", overlap="allow", missed="last", window="2m")
    await bench.go_to(at("2027-01-10T08:10:00"))
    await bench.fire_due()
    view = await bench.use.get("all")
    assert 119 <= view.fired <= 122
    assert view.fired + view.missed in (601, 602)
    rows = await bench.c.fetchval(
        "select count(*) from perdure.schedule_fire f join perdure.schedule s on s.id = f.schedule_id where name = 'all'"
    )
    assert rows == view.fired + 100
    assert (await bench.use.get("last")).fired == 1


# -- what people do ------------------------------------------------------------------------------------------------


async def test_a_redeploy_keeps_the_next_time_unless_the_spec_changed(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    before = await bench.put(cron="0 8 * * *")
    await bench.go_to(at("2027-01-10T08:30"))  # due and not fired yet: a change of the input must not lose it
    same = await bench.put(workflow="other", cron=" 0  8 * * * ")
    assert same.next_us == before.next_us
    assert same.workflow == "other"
    changed = await bench.put(cron="0 9 * * *")
    assert datetime_of(changed.next_us) == at("2027-01-10T09:00")


async def test_paused_means_nothing_fires_and_resumed_means_from_now_on(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", missed="all", window="1d")
    await bench.use.pause("s", "the warehouse moves")
    again = await Schedules(bench.schedulers[1], NS, "grace").pause("s", "me too")
    assert (again.state, again.paused_by, again.pause_reason) == ("paused", "ada", "the warehouse moves")
    await bench.go_to(at("2027-01-10T12:30"))
    await bench.fire_due()
    assert await bench.outcomes() == []
    view = await bench.use.resume("s")
    assert (view.state, view.paused_by, datetime_of(view.next_us or 0)) == ("active", None, at("2027-01-10T13:00"))
    await bench.go_to(at("2027-01-10T13:00:01"))
    await bench.fire_due()
    assert await bench.fires() == [(at("2027-01-10T13:00"), "started")]


async def test_a_put_does_not_resume(bench: Bench) -> None:
    await bench.put(every="1h")
    await bench.use.pause("s")
    assert (await bench.put(every="2h")).state == "paused"


async def test_a_trigger_starts_a_run_at_once_and_does_not_count(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(cron="0 8 * * *", overlap="allow")
    await bench.use.pause("s")
    run_id = await bench.use.trigger("s")
    (run,) = await bench.runs()
    assert run["run_id"].bytes == run_id
    view = await bench.use.get("s")
    assert (view.fired, datetime_of(view.next_us or 0)) == (0, at("2027-01-10T08:00"))
    (fire,) = await bench.use.fires("s", None, 10)
    assert (fire.how, fire.outcome, fire.run_id, fire.status) == ("trigger", "started", run_id, 0)


async def test_a_trigger_of_a_workflow_that_is_not_there_is_refused(bench: Bench) -> None:
    await bench.put(workflow="nobody", cron="0 8 * * *")
    with pytest.raises(NotRegistered, match="no workflow 'nobody'"):
        await bench.use.trigger("s")


async def test_a_backfill_starts_what_had_no_run_and_says_so_before(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap="skip")
    for hour in (8, 9):
        await bench.go_to(at(f"2027-01-10T{hour:02}:00:01"))
        await bench.fire_due()
    since, until = us_of(at("2027-01-10T06:00")), us_of(at("2027-01-10T09:00:01"))
    planned = await bench.use.backfill("s", since, until, dry_run=True)
    assert [(datetime_of(t.nominal_us).hour, t.exists) for t in planned] == [
        (6, False),
        (7, False),
        (8, True),
        (9, False),
    ]
    assert len(await bench.runs()) == 1
    made = await bench.use.backfill("s", since, until)
    assert [(datetime_of(t.nominal_us).hour, t.exists) for t in made] == [(6, False), (7, False), (8, True), (9, False)]
    assert all(t.run_id is not None for t in made)
    assert len(await bench.runs()) == 4
    again = await bench.use.backfill("s", since, until)
    assert [t.exists for t in again] == [True] * 4
    assert [t.run_id for t in again] == [t.run_id for t in made]
    assert len(await bench.runs()) == 4
    fires = await bench.use.fires("s", None, 10)
    assert [(f.how, f.outcome) for f in fires] == [
        ("backfill", "started"),
        ("fired", "started"),
        ("backfill", "started"),
        ("backfill", "started"),
    ]
    view = await bench.use.get("s")
    assert (view.fired, view.skipped) == (1, 1)


async def test_backfills_that_race_start_one_run_per_time(bench: Bench) -> None:
    await bench.put(every="1h")
    now = await bench.now()
    until = us_of(now)
    await asyncio.gather(
        *(
            Schedules(s, NS, "ada").backfill("s", until - 24 * HOUR_US, until)
            for s in bench.schedulers
            for _ in range(2)
        )
    )
    assert len(await bench.runs()) == 24


async def test_a_backfill_is_bounded_and_about_the_past(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1m")
    since = us_of(at("2027-01-01T00:00"))
    with pytest.raises(
        InvalidInput, match=r"BACKFILL_TIMES_MAX=1,000 .* until 2027-01-01T16:40:00\+00:00 first, then since"
    ):
        await bench.use.backfill("s", since, us_of(at("2027-01-10T00:00")))
    with pytest.raises(InvalidInput, match="in the future"):
        await bench.use.backfill("s", since, us_of(at("2027-02-01T00:00")), dry_run=True)
    with pytest.raises(InvalidInput, match="from an earlier time"):
        await bench.use.backfill("s", since, since)
    assert await bench.runs() == []


async def test_the_next_times_are_shown_over_the_change_of_the_clocks(bench: Bench) -> None:
    await bench.go_to(at("2027-03-26T12:00"))
    await bench.put(cron="30 2 * * *", tz="Europe/Paris")
    times = [datetime_of(t) for t in await bench.use.times("s", 4)]
    assert times == [at("2027-03-27T01:30"), at("2027-03-28T01:00"), at("2027-03-29T00:30"), at("2027-03-30T00:30")]
    await bench.use.pause("s")
    assert [datetime_of(t) for t in await bench.use.times("s", 2)] == times[:2]


async def test_deleted_means_gone_and_its_name_is_free(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(cron="0 8 * * *")
    await bench.use.delete("s")
    with pytest.raises(NotFound, match="there is no schedule 's'"):
        await bench.use.delete("s")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    assert await bench.runs() == []
    await bench.put(cron="0 9 * * *")
    await bench.put("nightly", cron="0 9 * * *")
    with pytest.raises(NotFound, match="there is no schedule 'nightyl' in this namespace; did you mean 'nightly'"):
        await bench.use.get("nightyl")


async def test_lists_are_paged_by_key(bench: Bench) -> None:
    for i in range(5):
        await bench.put(f"s{i}", "other" if i == 3 else "report", every="1h")
    first = await bench.use.page("", "", 2)
    assert [s.name for s in first] == ["s0", "s1"]
    assert [s.name for s in await bench.use.page("", "s1", 10)] == ["s2", "s3", "s4"]
    assert [s.name for s in await bench.use.page("other", "", 10)] == ["s3"]
    now = us_of(await bench.now())
    await bench.use.backfill("s0", now - 5 * HOUR_US, now)
    newest = await bench.use.fires("s0", None, 2)
    older = await bench.use.fires("s0", newest[-1].nominal_us, 10)
    assert len(newest) == 2
    assert len(older) == 3
    assert [f.nominal_us for f in newest + older] == sorted((f.nominal_us for f in newest + older), reverse=True)


@pytest.mark.parametrize("name", ["", " x", "a/", "/a", "a/times", "a/fires", "x" * 201])
async def test_names_that_cannot_be_told_apart_are_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a schedule|invalid schedule name"):
        await bench.put(name, every="1h")


async def test_old_times_go_with_retention(bench: Bench) -> None:
    await bench.put(every="1h")
    now = us_of(await bench.now())
    await bench.use.backfill("s", now - 20 * 24 * HOUR_US, now - 18 * 24 * HOUR_US)
    await bench.use.backfill("s", now - 5 * HOUR_US, now)
    await bench.schedulers[0].prune()
    assert len(await bench.use.fires("s", None, 500)) == 5


async def test_old_times_go_on_a_machine_that_has_just_booted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock counts from the boot: its zero is no moment long ago."""
    uptime_s = 3.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: uptime_s)
    await bench.put(every="1h")
    now = us_of(await bench.now())

    async def left_after_pruning() -> int:
        await bench.schedulers[0].prune()
        return len(await bench.use.fires("s", None, 500))

    await bench.use.backfill("s", now - 20 * 24 * HOUR_US, now - 18 * 24 * HOUR_US)
    assert await left_after_pruning() == 0
    await bench.use.backfill("s", now - 20 * 24 * HOUR_US, now - 18 * 24 * HOUR_US)
    uptime_s += PRUNE_S - 1
    assert await left_after_pruning() == 48, "not more often than once an hour"
    uptime_s += 1
    assert await left_after_pruning() == 0


async def test_the_verifier_finds_a_second_run_of_a_nominal_time(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap="allow")
    for hour in (8, 9):
        await bench.go_to(at(f"2027-01-10T{hour:02}:00:01"))
        await bench.fire_due()
    sound = {t.number: t for t in await verify(bench.dsn)}
    assert (sound[15].examined, sound[15].violations) == (2, 0)
    first, second = await bench.runs()
    body = await bench.c.fetchval("select body from perdure.history where run_id = $1", first["run_id"])
    await bench.c.execute("update perdure.history set body = $2 where run_id = $1", second["run_id"], body)
    (example,) = {t.number: t for t in await verify(bench.dsn)}[15].examples
    assert example.run == str(second["run_id"])
    assert f"its nominal time belongs to {first['run_id']}" in example.what
    await bench.c.execute("update perdure.schedule_fire set nominal_at = nominal_at - interval '1 minute'")
    assert {t.number: t for t in await verify(bench.dsn)}[15].violations == 2


async def test_a_paused_one_does_not_fire_beside_another_that_is_due(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h")
    await bench.put("other", every="1h")
    await bench.use.pause("s")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    assert await bench.outcomes("other") == ["started"]
    assert await bench.outcomes() == []


async def test_a_deleted_one_does_not_fire_beside_another_that_is_due(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h")
    await bench.put("other", every="1h")
    await bench.use.delete("s")
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    assert await bench.outcomes("other") == ["started"]
    assert len(await bench.runs()) == 1


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
async def test_a_backfill_is_no_overlap(bench: Bench, overlap: str) -> None:
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h", overlap=overlap)
    await bench.use.backfill("s", us_of(at("2027-01-10T05:00")), us_of(at("2027-01-10T07:30")))
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    assert (await bench.fires())[-1] == (at("2027-01-10T08:00"), "started")
    assert await bench.c.fetchval("select count(*) from perdure.inbox") == 0, "and the backfill is not cancelled"


async def test_a_time_that_was_missed_is_made_up_for_by_a_backfill_alone(bench: Bench) -> None:
    """An engine that fires a time which is written down as missed, skipped or started already starts nothing."""
    await bench.go_to(at("2027-01-10T07:59"))
    await bench.put(every="1h")
    nominal = at("2027-01-10T08:00")
    schedule = await bench.c.fetchval("select id from perdure.schedule")
    add = (
        "insert into perdure.schedule_fire (schedule_id, nominal_at, ns, how, outcome) values ($1, $2, 1, 'fired', $3)"
    )
    await bench.c.execute(add, schedule, nominal, MISSED)
    await bench.go_to(at("2027-01-10T08:00:01"))
    await bench.fire_due()
    assert (await bench.fires(), await bench.runs()) == ([(nominal, "missed")], [])
    await bench.use.backfill("s", us_of(nominal), us_of(nominal) + 1)
    assert (await bench.fires(), len(await bench.runs())) == ([(nominal, "started")], 1)


# -- calendars -----------------------------------------------------------------------------------------------------


async def test_a_calendar_that_changes_moves_the_schedules_that_use_it(bench: Bench) -> None:
    await bench.go_to(at("2027-01-10T09:00"))  # a Sunday
    holidays = parse_calendar({"dates": ["2027-01-12"]})
    with pytest.raises(InvalidInput, match="there is no calendar 'holidays'"):
        await bench.put(cron="0 8 * * *", exclude=["holidays"])
    await bench.use.put_calendar("holidays", holidays)
    view = await bench.put(cron="0 8 * * *", exclude=["holidays"])
    assert datetime_of(view.next_us) == at("2027-01-11T08:00")
    await bench.use.put_calendar("holidays", parse_calendar({"dates": ["2027-01-11", "2027-01-12"]}))
    assert datetime_of((await bench.use.get("s")).next_us or 0) == at("2027-01-13T08:00")
    with pytest.raises(Conflict, match="used by s"):
        await bench.use.delete_calendar("holidays")
    with pytest.raises(InvalidInput, match="did you mean 'holidays'"):
        await bench.put("t", cron="0 8 * * *", exclude=["holiday"])
    await bench.use.delete("s")
    await bench.use.delete_calendar("holidays")
    with pytest.raises(NotFound):
        await bench.use.delete_calendar("holidays")


async def test_a_day_that_is_excluded_does_not_fire(bench: Bench) -> None:
    await bench.go_to(at("2027-01-08T09:00"))  # a Friday
    await bench.use.put_calendar("working", parse_calendar({"weekdays": ["mon", "tue", "wed", "thu", "fri"]}))
    await bench.put(cron="0 8 * * *", calendars=["working"], overlap="allow")
    for day in range(9, 13):
        await bench.go_to(at(f"2027-01-{day:02}T08:00:01"))
        await bench.fire_due()
    assert [when.day for when, _ in await bench.fires()] == [11, 12]


def test_attributes_of_a_run_name_its_schedule() -> None:
    from perdure.flows.scheduled import attributes_of

    assert attributes_of("n", encode_json({"env": "prod"})) == b'{"env":"prod","schedule":"n"}'
