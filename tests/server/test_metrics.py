"""/metrics says what happened, in words that Prometheus itself accepts, and asks the database little."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from perdure import Perdure, task, workflow
from perdure.engine.counters import Counters, Histogram, Measures
from perdure.engine.services.telemetry import WorkerRow
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings
from perdure.server.health import routes
from perdure.server.metrics import COUNTED, MEASURED, MEASURED_ELSEWHERE, OTHER, SERIES_MAX, Metrics
from perdure.store.telemetry import PostgresTelemetry
from tests.fakes.waiting import busy, until

ROOT = Path(__file__).parents[2]
UP_S_MAX = 30.0


def program(name: str) -> str:
    """Debian's prometheus package has both. A machine without it may skip; CI may not."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is not installed; install the package `prometheus`")
        pytest.skip(f"{name} is not installed")
    return found


@task
async def measured(n: int) -> int:
    await busy(0.003)
    return n


@task(retry=1)
async def failing() -> None:
    raise ValueError("as asked")


@workflow
async def measured_flow(n: int) -> int:
    results: list[int] = await measured.map(range(n))
    return sum(results)


@workflow
async def failing_flow() -> None:
    await failing()


def values(text: str) -> dict[str, float]:
    """Samples without labels, and those with labels under name{...}."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))
            found[f"{s.name}{{{labels}}}" if labels else s.name] = s.value
    return found


class CountingStore:
    """How often the database is asked, and what it says."""

    def __init__(self, depths: list[tuple[str, str, int, float]] | None = None) -> None:
        self.asked = 0
        self._depths = depths or []

    async def ping(self) -> None: ...

    async def live_sessions(self) -> int:
        self.asked += 1
        return 1

    async def namespaces(self) -> dict[int, str]:
        return {1: "default"}

    async def waits(self) -> list[tuple[int, str, str, int]]:
        return [(1, "run", "signal", 3)]

    async def queue_depths(self) -> list[tuple[str, str, int, float]]:
        return self._depths


async def rendered(metrics: Metrics, accept: str = "") -> dict[str, float]:
    body, _ = await metrics.render(accept)
    return values(body.decode())


# -- what is measured -----------------------------------------------------------------------------------------------


def test_a_histogram_counts_up_to_its_bounds() -> None:
    h = Histogram()
    for value in (0, 1, 3, 4, 7, 8, 1_000_000):
        h.add(value)
    assert dict(h.cumulative(0, 3)) == {0: 1, 1: 2, 3: 3, 7: 5}
    assert dict(h.cumulative(2, 20))[(1 << 20) - 1] == 7
    assert (h.count, h.total) == (7, 1_000_023)


def test_everything_counted_and_measured_is_shown() -> None:
    numbers = {f.name for f in fields(Counters)} - {"measures"}
    assert numbers == set(COUNTED) | MEASURED_ELSEWHERE
    assert set(Measures.__slots__) == set(MEASURED)


async def test_what_ran_is_counted_and_measured(dsn: str) -> None:
    async with Perdure(dsn) as client:
        assert await measured_flow.run(20) == 190
        with pytest.raises(Exception, match="as asked"):
            await failing_flow.run()
        found = await rendered(Metrics(client.engine, PostgresTelemetry(client.store.pool)))
    assert found["perdure_runs_started_total"] == found["perdure_runs_ended_total"] == 2
    assert found["perdure_runs_failed_total"] == found["perdure_tasks_failed_total"] == 1
    where = f"namespace=default,workflow={measured_flow.name}"
    assert found[f"perdure_workflow_runs_started_total{{{where}}}"] == 1
    ended = "perdure_workflow_runs_ended_total"
    assert found[f"{ended}{{namespace=default,status=success,workflow={measured_flow.name}}}"] == 1
    assert found[f"{ended}{{namespace=default,status=failed,workflow={failing_flow.name}}}"] == 1
    assert found[f"perdure_workflow_run_duration_seconds_count{{{where}}}"] == 1
    outcomes = {k: v for k, v in found.items() if k.startswith("perdure_task_attempts_total{")}
    assert sorted(outcomes.values()) == [1, 20] and any("outcome=error" in k for k in outcomes)
    assert found["perdure_tasks_ended_total"] == 21
    assert found["perdure_task_duration_seconds_count"] == 21
    assert 0.06 <= found["perdure_task_duration_seconds_sum"] < 5
    assert found["perdure_task_duration_seconds_bucket{le=0.002047}"] <= 1, "only the one that failed at once"
    assert found["perdure_task_schedule_to_start_seconds_count"] == 21
    assert found["perdure_commit_batch_rows_count"] == found["perdure_commits_total"] > 0
    assert found["perdure_commit_duration_seconds_sum"] > 0
    assert found["perdure_session_held"] == found["perdure_database_up"] == found["perdure_engines"] == 1
    assert found["process_resident_memory_bytes"] > 1_000_000


# -- what it costs --------------------------------------------------------------------------------------------------


async def test_scrapes_share_one_reading_of_the_database(dsn: str) -> None:
    async with Perdure(dsn, worker=False) as client:
        store = CountingStore()
        metrics = Metrics(client.engine, store)
        await asyncio.gather(*(metrics.render() for _ in range(50)))
        await metrics.render()
        assert store.asked == 1


async def test_labels_are_bounded(dsn: str) -> None:
    many = SERIES_MAX + 50
    async with Perdure(dsn, worker=False) as client:
        store = CountingStore([("default", f"q{n:04}", 2, float(n)) for n in range(many)])
        client.engine.telemetry.workers = [a_worker([f"q{n:04}" for n in range(many)])]
        found = await rendered(Metrics(client.engine, store))
    for name, other in (("perdure_queue_depth", 100), ("perdure_worker_slots", 500), ("perdure_workers", 50)):
        shown = [k for k in found if k.startswith(name + "{")]
        assert len(shown) == SERIES_MAX + 1
        assert found[f"{name}{{namespace={OTHER},queue={OTHER}}}"] == other
    assert found[f"perdure_queue_oldest_age_seconds{{namespace={OTHER},queue={OTHER}}}"] == many - 1


def a_worker(queues: list[str]) -> WorkerRow:
    return WorkerRow(
        id=bytes(16),
        ns=1,
        name="w",
        host="h",
        pid=1,
        sdk="s",
        queues=queues,
        tasks=[],
        versions={},
        build_id="",
        slots=10,
        slots_used=4,
        runs_held=0,
        draining=False,
        connected_us=0,
        seen_us=0,
    )


async def test_a_worker_counts_in_each_of_its_queues(dsn: str) -> None:
    async with Perdure(dsn, worker=False) as client:
        client.engine.telemetry.workers = [a_worker(["default", "gpu"]), a_worker(["gpu"])]
        found = await rendered(Metrics(client.engine, CountingStore()))
    assert found["perdure_worker_slots{namespace=default,queue=gpu}"] == 20
    assert found["perdure_worker_slots_used{namespace=default,queue=default}"] == 4


# -- what Prometheus says -------------------------------------------------------------------------------------------


async def test_promtool_finds_nothing_to_complain_about(dsn: str) -> None:
    tool = program("promtool")
    async with Perdure(dsn) as client:
        await measured_flow.run(5)
        client.engine.telemetry.workers = [a_worker(["default"])]
        body, _ = await Metrics(client.engine, CountingStore([("default", "q", 1, 1.0)])).render()
    ours = (
        b"\n".join(line for line in body.splitlines() if b"python_" not in line) + b"\n"
    )  # the client library's own names
    done = subprocess.run([tool, "check", "metrics"], input=ours, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_alerts_are_valid_and_ask_for_metrics_that_exist() -> None:
    alerts = ROOT / "deploy/prometheus/alerts.yml"
    rules = [r["expr"] for g in yaml.safe_load(alerts.read_text())["groups"] for r in g["rules"]]
    assert named(rules) <= known()
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(alerts)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    board = json.loads((ROOT / "deploy/grafana/perdure.json").read_text())
    asked = named([t["expr"] for p in board["panels"] for t in p["targets"]])
    assert asked <= known()
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])


def named(expressions: list[str]) -> set[str]:
    return set(re.findall(r"\bperdure_[a-z_]+", "\n".join(expressions)))


def known() -> set[str]:
    """Every name there is, from the source of the page: one that is renamed must be renamed everywhere."""
    source = (ROOT / "src/perdure/server/metrics.py").read_text()
    bare = set(re.findall(r'"(perdure_[a-z_]+)"', source))
    counters = {f"perdure_{name}_total" for name in COUNTED}
    histograms = {f"{m[0]}{end}" for m in MEASURED.values() for end in ("_bucket", "_sum", "_count")}
    return bare | counters | histograms


@asynccontextmanager
async def served(client: Perdure) -> AsyncIterator[str]:
    """The three routes on a free port of the loopback interface."""
    app = Starlette(routes=routes(client.engine, PostgresTelemetry(client.store.pool)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        serving = asyncio.create_task(server.serve([listening]))
        await until(lambda: server.started or serving.done())
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def whole_server(dsn: str) -> AsyncIterator[str]:
    """A server as people run it, without workers."""
    anywhere = Address("127.0.0.1", 0)
    process = ServerProcess(ServerSettings(dsn=dsn, http=anywhere, grpc=anywhere, auth="open", drain_s=5))
    await process.start()
    try:
        yield process.url.removeprefix("http://")
    finally:
        await process.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port: int = s.getsockname()[1]
        return port


@contextmanager
def prometheus(targets: list[str], directory: Path) -> Iterator[str]:
    binary, address = program("prometheus"), f"127.0.0.1:{free_port()}"
    config = directory / "prometheus.yml"
    scrape = {"job_name": "perdure", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
    config.write_text(
        yaml.safe_dump({"rule_files": [str(ROOT / "deploy/prometheus/alerts.yml")], "scrape_configs": [scrape]})
    )
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(120)


async def asked(http: httpx2.AsyncClient, path: str, **params: str) -> Any:
    try:
        answer = await http.get(path, params=params)
        return answer.json()["data"] if answer.status_code == 200 else None
    except httpx2.TransportError:  # it is not up yet
        return None


@pytest.mark.usefixtures("processes")
async def test_prometheus_scrapes_live_servers(dsn: str, tmp_path: Path) -> None:
    program("prometheus")
    async with Perdure(dsn) as client, served(client) as embedded, whole_server(dsn) as server:
        await measured_flow.run(10)
        with prometheus([embedded, server], tmp_path) as url:
            async with httpx2.AsyncClient(base_url=url, timeout=120) as http, asyncio.timeout(UP_S_MAX):

                async def both() -> list[Any]:
                    answer = await asked(http, "/api/v1/query", query="perdure_tasks_ended_total")
                    return answer["result"] if answer and len(answer["result"]) >= 2 else []

                found = await until(both, within_s=UP_S_MAX)
                ended = {s["metric"]["instance"]: float(s["value"][1]) for s in found}
                assert ended == {embedded: 10, server: 0}
                targets = (await asked(http, "/api/v1/targets"))["activeTargets"]
                assert [(t["health"], t["lastError"]) for t in targets] == [("up", "")] * 2
                quantile = "histogram_quantile(0.5, sum by (le) (perdure_task_duration_seconds_bucket))"
                median = (await asked(http, "/api/v1/query", query=quantile))["result"][0]
                assert 0.002 < float(median["value"][1]) < 1
                engines = (await asked(http, "/api/v1/query", query="perdure_engines"))["result"]
                assert {s["value"][1] for s in engines} == {"2"}
                rules = (await asked(http, "/api/v1/rules"))["groups"][0]["rules"]
                assert {r["health"] for r in rules} <= {"ok", "unknown"}
