"""Schedules and calendars over REST, and over gRPC from Python."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Client, Schedule
from perdure.errors import NotFound
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings
from tests.fakes.waiting import until
from tests.server.rest_live import Live, live, sum_

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "workflow": "rest_sum",
    "input": {"x": 2, "y": 3},
    "spec": {"cron": "0 8 * * *", "tz": "Europe/Paris"},
    "attributes": {"team": "data"},
}
ETL = """
flow: rest_etl
input: {day: {type: string}}
triggers: [{every: 1h, name: often}]
tasks: {a: {value: "${ input.day }"}}
"""


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as found:
        yield found


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_schedule_is_made_shown_changed_and_deleted(api: Live) -> None:
    made = await api.post("/schedules", NIGHTLY)
    assert made["state"] == "active"
    assert made["spec"] == {"cron": "0 8 * * *", "tz": "Europe/Paris"}
    assert (made["input"], made["attributes"], made["version"]) == ({"x": 2, "y": 3}, {"team": "data"}, None)
    assert (made["origin"], made["created_by"], made["next_at"]) == ("api", "dev", made["fire_at"])
    assert moment(made["next_at"]) > datetime.now(UTC)
    assert await api.get("/schedules/nightly") == made
    again = await api.post("/schedules", NIGHTLY, 409)
    assert again["code"] == "conflict"
    assert "update it, or choose another name" in again["detail"]
    body = {k: v for k, v in NIGHTLY.items() if k != "name"} | {"input": {"x": 5}}
    changed = await api.ask("PUT", "/schedules/nightly", 200, json=body)
    assert (changed["input"], changed["next_at"]) == ({"x": 5}, made["next_at"])
    other = await api.ask("PUT", "/schedules/other", 201, json=body)
    assert other["name"] == "other"
    assert [s["name"] for s in (await api.get("/schedules"))["items"]] == ["nightly", "other"]
    page = await api.get("/schedules", limit=1)
    assert [s["name"] for s in (await api.get("/schedules", cursor=page["next"]))["items"]] == ["other"]
    assert (await api.get("/schedules", workflow="rest_map"))["items"] == []
    await api.ask("DELETE", "/schedules/other", 204)
    assert (await api.get("/schedules/other", 404))["code"] == "not_found"
    assert "did you mean 'nightly'" in (await api.get("/schedules/nightyl", 404))["detail"]
    actions = [line["action"] for line in (await api.get("/audit"))["items"]]
    assert [a for a in actions if a.startswith("schedule.")][::-1] == [
        "schedule.create",
        "schedule.update",
        "schedule.create",
        "schedule.delete",
    ]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"spec": {}}, 422, "give it cron, every or at"),
        ({"spec": {"cron": "0 8 * *"}}, 422, "has 4 fields"),
        ({"spec": {"cron": "0 8 * * *", "tz": "Mars/Olympus"}}, 422, "Mars/Olympus"),
        ({"spec": {"cron": 5}}, 422, "cron"),
        ({"spec": {"every": "1h", "moon": 1}}, 422, "moon"),
        ({"spec": {"every": "1h", "calendars": ["holidays"]}}, 422, "no calendar 'holidays'"),
        ({"spec": {"at": "2020-01-01T00:00:00Z"}}, 422, "would never fire"),
        ({"workflow": "rest_smu"}, 404, "did you mean 'rest_sum'"),
        ({"version": "nope"}, 404, "no version 'nope'"),
        ({"name": "a/fires"}, 422, "cannot name a schedule"),
        ({"name": "x" * 300}, 422, "name"),
        ({"args": [1]}, 422, "not both ways"),
    ],
)
async def test_what_cannot_work_is_refused(api: Live, change: dict[str, Any], status: int, said: str) -> None:
    assert said in (await api.post("/schedules", NIGHTLY | change, status))["detail"]
    assert (await api.get("/schedules"))["items"] == []


async def test_pause_resume_trigger_and_what_came_of_it(api: Live) -> None:
    await api.post("/schedules", NIGHTLY)
    paused = await api.post("/schedules/nightly/pause", {"reason": "the house is on fire"}, 200)
    assert (paused["state"], paused["paused"]["by"], paused["paused"]["reason"]) == (
        "paused",
        "dev",
        "the house is on fire",
    )
    assert (await api.post("/schedules/nightly/resume", None, 200))["paused"] is None
    triggered = await api.post("/schedules/nightly/trigger", None, 201)
    assert (await api.get(f"/runs/{triggered['run_id']}/result", wait=60))["result"] == 10
    run = await api.get(f"/runs/{triggered['run_id']}")
    assert run["attributes"] == {"team": "data", "schedule": "nightly"}
    fires = await api.get("/schedules/nightly/fires")
    assert [(f["how"], f["outcome"], f["run_id"], f["status"]) for f in fires["items"]] == [
        ("trigger", "started", triggered["run_id"], "success")
    ]
    found = await api.get("/runs", attr="schedule:nightly")
    assert [r["id"] for r in found["items"]] == [triggered["run_id"]]


async def test_times_ahead_and_a_preview_of_what_is_not_there(api: Live) -> None:
    await api.post("/schedules", NIGHTLY)
    times = (await api.get("/schedules/nightly/times", n=3))["times"]
    assert len(times) == 3
    assert times == sorted(times)
    same = await api.post("/schedules/preview", {"spec": NIGHTLY["spec"], "n": 3}, 200)
    assert same["times"] == times
    assert same["words"] == (await api.get("/schedules/nightly"))["words"] != ""
    assert (await api.get("/schedules/nothing/times", 404))["code"] == "not_found"


async def test_a_backfill_says_first_and_then_does(api: Live) -> None:
    await api.post("/schedules", NIGHTLY)
    body = {"since": "3d", "dry_run": True}
    planned = await api.post("/schedules/nightly/backfill", body, 200)
    assert (planned["dry_run"], planned["started"], [t["exists"] for t in planned["times"]]) == (True, 3, [False] * 3)
    made = await api.post("/schedules/nightly/backfill", {"since": planned["times"][0]["nominal_at"]}, 200)
    assert [t["nominal_at"] for t in made["times"]] == [t["nominal_at"] for t in planned["times"]]
    assert made["started"] == 3
    for t in made["times"]:
        await api.get(f"/runs/{t['run_id']}/result", wait=60)
    first = await api.get("/schedules/nightly/fires", limit=2)
    rest = await api.get("/schedules/nightly/fires", cursor=first["next"])
    assert [(f["how"], f["status"]) for f in first["items"] + rest["items"]] == [("backfill", "success")] * 3
    assert (
        "in the future"
        in (
            await api.post(
                "/schedules/nightly/backfill",
                {"since": "1d", "until": (datetime.now(UTC) + timedelta(days=1)).isoformat()},
                422,
            )
        )["detail"]
    )
    assert "since: write a time" in (await api.post("/schedules/nightly/backfill", {"since": "soon"}, 422))["detail"]


async def test_a_schedule_fires_while_the_server_runs(api: Live) -> None:
    await api.post("/schedules", NIGHTLY | {"spec": {"every": "1s", "overlap": "allow"}})

    async def has_fired_twice() -> bool:
        return bool((await api.get("/schedules/nightly"))["fired"] >= 2)

    await until(has_fired_twice)
    assert api.server.engine.counters.schedules_fired >= 2


async def test_triggers_of_a_flow_have_a_slash_in_their_name(api: Live) -> None:
    await api.post("/workflows/deploy", {"source": ETL})
    found = await api.get("/schedules/rest_etl/often")
    assert (found["origin"], found["spec"]) == ("flow:rest_etl", {"every": "1h"})
    assert await api.get("/schedules/rest_etl%2Foften") == found
    assert len((await api.get("/schedules/rest_etl/often/times"))["times"]) == 5
    days = [datetime.now(UTC).date().isoformat()]
    triggered = await api.post("/schedules/rest_etl/often/trigger", None, 201)
    days.append(datetime.now(UTC).date().isoformat())
    result = await api.get(f"/runs/{triggered['run_id']}/result", wait=60)
    assert result["result"] in [{"a": day} for day in days]
    body = {"workflow": "rest_etl", "input": {"day": "x"}, "spec": {"every": "2h"}}
    refused = await api.ask("PUT", "/schedules/rest_etl%2Foften", 409, json=body)
    assert "comes from the triggers of the flow 'rest_etl'" in refused["detail"]
    versions = (await api.get("/workflows/rest_etl"))["versions"]
    await api.post("/workflows/deploy", {"source": ETL.replace("every: 1h", "every: 2h")})
    assert (await api.get("/schedules/rest_etl/often"))["spec"] == {"every": "2h"}
    await api.post("/workflows/rest_etl/current", {"version": versions[0]["version"]}, 200)
    assert (await api.get("/schedules/rest_etl/often"))["spec"] == {"every": "1h"}
    await api.ask("DELETE", "/workflows/rest_etl", 204)
    assert (await api.get("/schedules"))["items"] == []


async def test_the_input_of_a_flow_is_checked_before_it_is_scheduled(api: Live) -> None:
    await api.post("/workflows/deploy", {"source": ETL.replace("triggers", "# triggers")})
    body = {"name": "s", "workflow": "rest_etl", "input": {"dya": "x"}, "spec": {"every": "2h"}}
    assert "input.dya is not known" in (await api.post("/schedules", body, 422))["detail"]


async def test_public_holidays_are_stored_when_a_schedule_names_them(api: Live) -> None:
    spec = {"cron": "0 8 * * *", "tz": "Europe/Berlin", "exclude": ["holidays:DE-BY"]}
    ahead = await api.post("/schedules/preview", {"spec": spec, "n": 100}, 200)
    assert (await api.get("/calendars"))["items"] == [], "a preview stores nothing"
    await api.post("/schedules", NIGHTLY | {"spec": spec})
    (stored,) = (await api.get("/calendars"))["items"]
    assert stored["name"] == "holidays:DE-BY" and "2026-01-06" in stored["spec"]["dates"]
    assert (await api.get("/schedules/nightly/times", n=100))["times"] == ahead["times"]
    all_days = await api.post("/schedules/preview", {"spec": spec | {"exclude": []}, "n": 100}, 200)
    assert all_days["times"] != ahead["times"], "100 days of Bavaria have a holiday"
    again = await api.ask("PUT", "/calendars/holidays:DE-BY", 200, json={})
    assert again["spec"] == stored["spec"]
    refused = await api.ask("PUT", "/calendars/holidays:DE-BY", 422, json={"dates": ["2026-01-01"]})
    assert "come from the package holidays" in refused["detail"]
    assert "perdure calendar set holidays:FR" in (await api.get("/calendars/holidays:FR", 404))["detail"]


async def test_public_holidays_that_cannot_be_known_refuse_the_schedule(
    api: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = NIGHTLY | {"spec": {"every": "1h", "exclude": ["holidays:XX"]}}
    assert "knows no country XX" in (await api.post("/schedules", unknown, 422))["detail"]
    monkeypatch.setitem(sys.modules, "holidays", None)
    known = NIGHTLY | {"spec": {"every": "1h", "exclude": ["holidays:DE"]}}
    assert "perdure[holidays]" in (await api.post("/schedules", known, 422))["detail"]
    etl = ETL.replace("name: often", "name: often, exclude: 'holidays:DE'")
    assert "perdure[holidays]" in (await api.post("/workflows/deploy", {"source": etl}, 422))["detail"]
    assert (await api.get("/schedules"))["items"] == [] and (await api.get("/calendars"))["items"] == []


async def test_public_holidays_of_the_triggers_of_a_flow_are_stored_with_it(api: Live) -> None:
    await api.post("/workflows/deploy", {"source": ETL.replace("name: often", "name: often, exclude: 'holidays:DE'")})
    assert [c["name"] for c in (await api.get("/calendars"))["items"]] == ["holidays:DE"]
    assert [s["name"] for s in (await api.get("/schedules"))["items"]] == ["rest_etl/often"]


async def test_calendars_are_set_used_and_kept_while_they_are_used(api: Live) -> None:
    made = await api.ask(
        "PUT", "/calendars/holidays", 200, json={"yearly": ["12-25"], "not": {"dates": ["2026-12-25"]}}
    )
    assert made["spec"] == {"yearly": ["12-25"], "not": {"dates": ["2026-12-25"]}}
    assert await api.get("/calendars/holidays") == made
    assert (await api.get("/calendars"))["items"] == [made]
    assert "no day" in (await api.ask("PUT", "/calendars/bad", 422, json={"dates": ["tomorrow"]}))["detail"]
    await api.post("/schedules", NIGHTLY | {"spec": {"cron": "0 8 * * *", "exclude": ["holidays"]}})
    assert "used by nightly" in (await api.ask("DELETE", "/calendars/holidays", 409))["detail"]
    await api.ask("DELETE", "/schedules/nightly", 204)
    await api.ask("DELETE", "/calendars/holidays", 204)
    assert (await api.get("/calendars/holidays", 404))["code"] == "not_found"


async def test_python_without_a_database_applies_schedules_through_a_server(dsn: str) -> None:
    server = ServerProcess(
        ServerSettings(dsn=dsn, http=Address("127.0.0.1", 0), grpc=Address("127.0.0.1", 0), auth="open", drain_s=2.0)
    )
    await server.start()
    try:
        daily = Schedule("daily", sum_.bind(1, y=2), cron="0 6 * * *", overlap="allow")
        async with Client(str(server.grpc)):
            view = await daily.apply()
            assert (view.origin, view.workflow, view.created_by) == ("code", "rest_sum", "dev")
            assert (await daily.next(1))[0] in await daily.next(2)
            await daily.pause("not yet")
            assert (await daily.describe()).pause_reason == "not yet"
            await daily.resume()
            now = datetime.now(UTC)
            planned = await daily.backfill(now - timedelta(days=2), now, dry_run=True)
            assert [t.exists for t in planned] == [False, False]
            assert await daily.fires() == []
            with pytest.raises(Exception, match="no workflow 'rest_sum'"):
                await daily.trigger()
            await daily.delete()
            with pytest.raises(NotFound):
                await daily.describe()
    finally:
        await server.stop()
