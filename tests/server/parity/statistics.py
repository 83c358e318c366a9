"""Scenarios of numbers of runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from perdure.core.api import statistics
from perdure.core.api.statistics import GetCounts, GetHistogram, GetStats, ListDurations
from perdure.core.durations import us_of
from tests.server.parity.stage import Refusal, Rest, Scenario, Stage, done

UNTIL = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
SINCE = UNTIL - timedelta(hours=6)
TOTALS = ("success", "failed", "cancelled", "running", "pending")


async def counted(stage: Stage) -> str:
    await stage.ended(done)
    await stage.failed()
    return "parity_done"


def histogram(workflow: str, since: datetime = SINCE) -> GetHistogram:
    return GetHistogram(since_us=us_of(since), until_us=us_of(UNTIL), bins=24, workflow=workflow)


def histogram_route(workflow: str, since: datetime = SINCE) -> Rest:
    params = {"since": since.isoformat(), "until": UNTIL.isoformat(), "bins": 24, "workflow": workflow}
    return Rest("GET", "/runs/histogram", params=params)


def backwards(name: str) -> Refusal:
    late = UNTIL + timedelta(hours=1)
    return Refusal(code="invalid_input", request=histogram(name, late), rest=histogram_route(name, late))


SCENARIOS = (
    Scenario(
        act=statistics.HISTOGRAM,
        setup=counted,
        request=histogram,
        rest=histogram_route,
        fields=" ".join(
            (
                "from_us=from to_us=to bin_s capped bins[].at_us=bins[].at",
                *(f"totals.{status} bins[].{status}" for status in TOTALS),
            )
        ),
        refusal=backwards,
    ),
    Scenario(
        act=statistics.STATS,
        setup=counted,
        request=lambda s: GetStats(s, 3),
        rest=lambda s: Rest("GET", f"/workflows/{s}/stats", params={"days": 3}),
        fields="p50_s p95_s success_rate capped days[].started days[].success days[].failed days[].cancelled days[].p50_s days[].p95_s "
        "versions[].version versions[].first_us=versions[].first_at",
        nowhere=("parity_nowhere", "not_registered"),
    ),
    Scenario(
        act=statistics.DURATIONS,
        setup=counted,
        request=lambda s: ListDurations(),
        rest=lambda s: Rest("GET", "/workflow-durations"),
        fields="items[].workflow items[].p50_s items[].p95_s items[].runs",
        without_refusal="it names nothing",
    ),
    Scenario(
        act=statistics.COUNTS,
        setup=counted,
        request=lambda s: GetCounts(),
        rest=lambda s: Rest("GET", "/counts"),
        fields="active pending failed_24h approvals dead_letters workers engines capped",
        without_refusal="it names nothing",
    ),
)
