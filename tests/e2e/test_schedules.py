"""Schedules end to end: from Python, from the triggers of a flow, through months of skipped time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Perdure, Schedule, TestEnv, flow, task, wf, workflow
from perdure.core.durations import datetime_of
from perdure.engine.api.schedules import Schedules
from perdure.errors import Conflict, FlowError, InvalidInput, NotFound
from tests.fakes.waiting import forever, until

ran: list[tuple[str, datetime | None]] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@task(name="schedules_note")
async def note(word: str) -> str:
    return word


@workflow(name="schedules_report")
async def report(word: str) -> str:
    ran.append((word, wf.nominal_time()))
    return await note(word)


@workflow(name="schedules_long")
async def long(minutes: int) -> str:
    ran.append(("long", wf.nominal_time()))
    await wf.sleep(f"{minutes}m")
    return "done"


@workflow(name="schedules_timed", timeout="1h")
async def timed() -> None:
    await forever()


def nominal_times() -> list[datetime]:
    """Each once: code that is replayed says it again."""
    return list(dict.fromkeys(at for _, at in ran if at is not None))


async def go_to(env: TestEnv, moment: datetime) -> None:
    assert moment > env.now
    await env.advance(moment - env.now)


# -- Python --------------------------------------------------------------------------------------------------------


async def test_a_schedule_starts_runs_that_know_their_nominal_time() -> None:
    hourly = Schedule("hourly", report.bind("tick"), every="1h", attributes={"team": "night"})
    async with TestEnv() as env:
        view = await hourly.apply()
        assert view.state == "active"
        upcoming = await hourly.next(3)
        await env.advance("3h")
        assert nominal_times() == upcoming
        fires = await hourly.fires()
        assert [(f.nominal, f.outcome, f.how, f.status) for f in reversed(fires)] == [
            (at, "started", "fired", "success") for at in upcoming
        ]
        first = fires[-1]
        assert first.run_id is not None
        handle = await env.client.get(first.run_id, workflow=report)
        assert await handle.result() == "tick"
        (started,) = [r.event for r in await handle.history()][:1]
        assert started.attributes == b'{"team":"night","schedule":"hourly"}'  # type: ignore[union-attr]


async def test_the_clocks_change_and_the_hour_on_the_wall_stays() -> None:
    morning = Schedule("morning", report.bind("good morning"), cron="30 2 * * *", tz="Europe/Paris", overlap="allow")
    async with TestEnv() as env:
        spring = datetime(2027, 3, 26, 12, tzinfo=UTC)
        await go_to(env, spring)
        await morning.apply()
        await env.advance("4d")
        autumn = datetime(2027, 10, 29, 12, tzinfo=UTC)
        ran_in_spring = nominal_times()
        await morning.pause("a summer off")
        await go_to(env, autumn)
        assert nominal_times() == ran_in_spring
        await morning.resume()
        await env.advance("4d")
    hours = [(t.month, t.day, t.hour, t.minute) for t in nominal_times()]
    # 02:30 does not exist on 28 March: it fires at the end of the gap. On 31 October it comes twice and fires once, the first time.
    assert hours == [
        (3, 27, 1, 30),
        (3, 28, 1, 0),
        (3, 29, 0, 30),
        (3, 30, 0, 30),
        (10, 30, 0, 30),
        (10, 31, 0, 30),
        (11, 1, 1, 30),
        (11, 2, 1, 30),
    ]


async def test_skip_lets_a_long_run_end_first() -> None:
    hourly = Schedule("hourly", long.bind(150), every="1h", overlap="skip")
    async with TestEnv() as env:
        await hourly.apply()
        await env.advance("6h")
        outcomes = [f.outcome for f in reversed(await hourly.fires())]
        assert outcomes == ["started", "skipped", "skipped", "started", "skipped", "skipped"]


async def test_cancel_stops_the_run_before() -> None:
    hourly = Schedule("hourly", long.bind(6000), every="1h", overlap="cancel")
    async with TestEnv() as env:
        await hourly.apply()
        await env.advance("3h")
        assert [f.status for f in reversed(await hourly.fires())] == ["cancelled", "cancelled", "running"]


async def test_queue_runs_one_after_the_other_in_order() -> None:
    hourly = Schedule("hourly", long.bind(150), every="1h", overlap="queue")
    async with TestEnv() as env:
        await hourly.apply()
        times = await hourly.next(4)
        for _ in range(4):
            await env.advance("1h")
            statuses = [f.status for f in reversed(await hourly.fires())]
            assert statuses == sorted(statuses, key=["success", "running", "pending"].index)
            assert statuses.count("running") == 1
        assert statuses[-1] == "pending"
        await hourly.pause()
        for _ in range(20):
            await env.advance("1h")
        assert nominal_times() == times
        assert {f.status for f in await hourly.fires()} == {"success"}


async def test_a_trigger_a_backfill_and_an_end() -> None:
    daily = Schedule("daily", report.bind("again"), cron="0 6 * * *")
    async with TestEnv() as env:
        await daily.apply()
        handle = await daily.trigger()
        assert await handle.result("5s") == "again"
        assert len(ran) == 1
        now = env.now
        since = now - timedelta(days=3)
        planned = await daily.backfill(since, now, dry_run=True)
        assert [(t.exists, t.run_id) for t in planned] == [(False, None)] * 3
        made = await daily.backfill(since, now)
        assert [t.nominal for t in made] == [t.nominal for t in planned]
        await env.advance("1s")
        assert sorted(nominal_times())[:3] == [t.nominal for t in planned]
        assert [t.exists for t in await daily.backfill(since, now)] == [True] * 3
        await daily.delete()
        with pytest.raises(NotFound, match="no schedule 'daily'"):
            await daily.describe()
        await env.advance("2d")
        assert len(ran) == 4


async def test_a_redeploy_keeps_the_next_time_unless_the_times_change() -> None:
    async with TestEnv() as env:
        before = await Schedule("s", report.bind("a"), every="10h", anchor=env.now).apply()
        await env.advance("1h")
        same = await Schedule("s", report.bind("b"), every="600m", anchor=datetime_of(before.spec.anchor_us)).apply()
        assert same.next_us == before.next_us
        other = await Schedule("s", report.bind("b"), every="5h").apply()
        assert other.next_us != before.next_us
        await env.advance("11h")
        assert {word for word, _ in ran} == {"b"}


async def test_the_timeout_of_a_workflow_holds_for_scheduled_runs() -> None:
    once = Schedule("once", timed.bind(), every="4h")
    async with TestEnv() as env:
        await once.apply()
        await env.advance("6h")
        assert [f.status for f in await once.fires()][-1] == "failed"


async def test_schedules_are_applied_when_a_client_opens(dsn: str) -> None:
    soon = Schedule("soon", report.bind("hello"), every="1s", overlap="allow", missed="all")
    async with Perdure(dsn, schedules=[soon]):
        await until(lambda: len(ran) >= 3, within_s=20)
    times = nominal_times()
    assert len(set(times)) == len(times)
    assert sorted(times)[:3] == [times[0] + timedelta(seconds=i) for i in range(3)]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "does not say when"),
        ({"cron": "0 25 * * *"}, "the hour '25' cannot be read"),
        ({"every": "1h", "tz": "Europe/Pariss"}, "Pariss"),
        ({"every": "1h", "overlap": "skipp"}, "did you mean 'skip'"),
    ],
)
def test_a_spec_that_cannot_work_is_refused_where_it_is_written(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Schedule("s", report.bind("x"), **spec)


def test_options_that_make_no_sense_for_a_schedule_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a key belongs to one run"):
        Schedule("s", report.options(key="x").bind("x"), every="1h")


# -- triggers ------------------------------------------------------------------------------------------------------

ETL = """\
flow: schedules_etl
input: {day: {type: string}}
triggers: [{cron: "0 8 * * *", tz: Europe/Paris, overlap: skip}]
tasks:
  load: {python: schedules_note, with: {word: "${ input.day }"}}
output: "${ load }"
"""


def schedules_of(env: TestEnv) -> Schedules:
    return Schedules(env.client.engine.scheduler, env.client.engine.ns, "tests")


async def results(env: TestEnv, name: str) -> list[Any]:
    schedules = schedules_of(env)
    fires = await schedules.fires(name, None, 100)
    return [
        await (await env.client.get(str(_uuid(f.run_id)))).result("5s") for f in reversed(fires) if f.run_id is not None
    ]


def _uuid(ident: bytes) -> object:
    from uuid import UUID

    return UUID(bytes=ident)


async def test_triggers_come_and_go_with_their_flow() -> None:
    async with TestEnv() as env:
        schedules = schedules_of(env)
        await go_to(env, datetime(2027, 3, 26, 12, tzinfo=UTC))
        await env.deploy(ETL)
        view = await schedules.get("schedules_etl")
        assert (view.origin, view.workflow, view.version) == ("flow:schedules_etl", "schedules_etl", "")
        await env.advance("3d")
        assert await results(env, "schedules_etl") == ["2027-03-27", "2027-03-28", "2027-03-29"]
        two = ETL.replace("[{cron", '[{every: 6h, name: often, with: {day: "${ nominal }"}}, {cron')
        await env.deploy(two)
        with pytest.raises(NotFound):
            await schedules.get("schedules_etl")
        assert (await schedules.get("schedules_etl/often")).spec.every_us == 6 * 3_600_000_000
        assert (await schedules.get("schedules_etl/2")).spec.tz == "Europe/Paris"
        await env.advance("6h")
        assert (await results(env, "schedules_etl/often"))[-1].endswith("+00:00")
        await env.deploy(ETL.replace("triggers: ", "# triggers: "))
        assert await results_of_all(env) == []


async def results_of_all(env: TestEnv) -> list[str]:
    found = await schedules_of(env).page()
    return [s.name for s in found]


async def test_deploying_the_same_triggers_again_keeps_their_next_time() -> None:
    async with TestEnv() as env:
        schedules = schedules_of(env)
        text = ETL.replace('[{cron: "0 8 * * *", tz: Europe/Paris, overlap: skip}]', "[{every: 10h}]")
        await env.deploy(text)
        before = await schedules.get("schedules_etl")
        await schedules.pause("schedules_etl", "for a while")
        await env.deploy(text.replace("tasks:", "description: changed\ntasks:"))
        after = await schedules.get("schedules_etl")
        assert (after.next_us, after.paused_by) == (before.next_us, "tests")


async def test_a_schedule_of_a_flow_is_changed_by_its_flow_alone() -> None:
    async with TestEnv() as env:
        await env.deploy(ETL)
        with pytest.raises(Conflict, match="comes from the triggers of the flow 'schedules_etl'"):
            await Schedule("schedules_etl", report.bind("x"), every="1h").apply()
        await Schedule("schedules_twice", report.bind("x"), every="1h").apply()
        with pytest.raises(Conflict, match="does not come from this flow"):
            await env.deploy(ETL.replace("schedules_etl", "schedules_twice"))
        # Both or neither: the version that would have come with it is not there.
        with pytest.raises(Exception, match="no workflow 'schedules_twice'"):
            await flow("schedules_twice").start(day="2027-01-01")


@pytest.mark.parametrize(
    ("triggers", "said"),
    [
        ("{cron: 0}", "flow.yaml:3:11: triggers is a mapping; it must be a list"),
        ("[5]", "flow.yaml:3:12: a trigger is the number 5; it must be a mapping"),
        ("[{tz: UTC}]", "flow.yaml:3:12: the schedule does not say when"),
        ('[{cron: "0 99 * * *"}]', "flow.yaml:3:19: cron: '0 99 * * *': the hour '99' cannot be read"),
        ("[{evry: 1h}]", "flow.yaml:3:13: unknown key 'evry' in a trigger; did you mean 'every'"),
        ("[{every: 1h, overlap: maybe}]", "flow.yaml:3:33: overlap: there is no policy 'maybe'"),
        (
            "[{every: 1h, with: {dya: 1}}]",
            "flow.yaml:3:30: the runs of this trigger would fail: input.dya is not known; did you mean 'day'?",
        ),
        ("[{every: 1h, with: {day: 1}}]", "input.day must be string, not integer"),
        ('[{every: 1h, with: {day: "${ nomnal }"}}]', "unknown name 'nomnal'; did you mean 'nominal'"),
        ("[{every: 1h, name: a}, {every: 2h, name: a}]", "flow.yaml:3:34: two triggers are called 'schedules_etl/a'"),
        ("[{every: 1h, name: times}]", "must not begin or end with /, nor end with /times"),
    ],
)
async def test_a_trigger_that_cannot_work_is_told_with_its_place(triggers: str, said: str) -> None:
    from perdure.flows.draft import draft_text

    text = ETL.replace('[{cron: "0 8 * * *", tz: Europe/Paris, overlap: skip}]', triggers)
    with pytest.raises(FlowError) as caught:
        draft_text(text, file="flow.yaml")
    assert said in str(caught.value)


def test_an_input_that_a_trigger_cannot_know_is_told() -> None:
    from perdure.flows.draft import draft_text

    text = ETL.replace("{day: {type: string}}", "{day: {type: string}, shop: {type: string}}")
    with pytest.raises(
        FlowError, match=r"input\.shop is missing; give the input in with:; it may read day, nominal, schedule"
    ):
        draft_text(text)
