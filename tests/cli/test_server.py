"""`perdure server` and `perdure worker` as processes: readiness, keys, draining, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.cli.live import Cli, perdure
from tests.cli.processes import free_port, server, started
from tests.fakes.waiting import until_sync

FLOWS = """
from perdure import task, workflow

@task
def slow() -> str:
    print("slow began", flush=True)
    with open("gate") as gate:
        return gate.read()

@workflow
async def slowly() -> str:
    return await slow()
"""


@pytest.mark.usefixtures("processes")
def test_a_server_says_when_it_is_ready_and_drains_when_told(dsn: str, tmp_path: Path) -> None:
    with server(dsn, tmp_path, "--auth", "open", "--drain", "10s") as one:
        assert httpx2.get(f"{one.http}/livez", timeout=120).status_code == 200
        assert httpx2.get(f"{one.http}/readyz", timeout=120).status_code == 200
        assert "perdure_" in httpx2.get(f"{one.http}/metrics", timeout=120).text
        assert perdure("list", PERDURE_URL=one.http).code == 0
        with grpc.insecure_channel(one.grpc) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        assert one.program.stop(signal.SIGTERM) == 0
        assert one.program.rest().splitlines()[-1] == "stopped"


@pytest.mark.usefixtures("processes")
def test_work_at_hand_survives_a_restart_of_the_server(dsn: str, tmp_path: Path) -> None:
    """The worker outlives the server, and its result reaches the next one."""
    (tmp_path / "flows.py").write_text(FLOWS)
    os.mkfifo(tmp_path / "gate")
    http, grpc = free_port(), free_port()
    where = ("--dsn", dsn, "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", "--auth", "open")
    # With a short lease, on a busy machine, the next server starts too late for the worker to bring its task.
    where += ("--set", "engine.lease_s=120")
    cli = Cli(f"http://127.0.0.1:{http}", tmp_path)
    with started("worker", "flows", "--server", f"127.0.0.1:{grpc}", cwd=tmp_path) as worker:
        with started("server", *where, cwd=tmp_path) as first:
            first.until("ready")
            worker.until("connected")
            run = cli.ok("run", "slowly").split("\t")[0]
            worker.until("slow began")
            assert first.stop(signal.SIGTERM) == 0
        with started("server", *where, cwd=tmp_path) as second:
            second.until("ready")
            (tmp_path / "gate").write_text("slow ended")
            assert cli("watch", run).code == 0
            assert worker.stop(signal.SIGTERM) == 0
            assert second.stop() == 0
        assert "slow began" not in worker.rest(), "it was executed once"


@pytest.mark.usefixtures("processes")
def test_the_second_signal_ends_a_server_at_once(dsn: str, tmp_path: Path) -> None:
    with server(dsn, tmp_path, "--auth", "open", "--drain", "60s") as one:
        stream = httpx2.stream("GET", f"{one.http}/api/v1/stream?runs=1", timeout=30)
        with stream as held:
            assert held.status_code == 200
            one.program.process.send_signal(signal.SIGTERM)
            one.program.until("stopping")
            one.program.process.send_signal(signal.SIGTERM)
            assert one.program.process.wait(10) in (0, 128 + signal.SIGTERM)


@pytest.mark.usefixtures("processes")
def test_keys_are_wanted_unless_told_otherwise(dsn: str, tmp_path: Path) -> None:
    with server(dsn, tmp_path) as one:
        cli = Cli(one.http, tmp_path)
        refused = cli("list")
        assert refused.code == 5 and "PERDURE_API_KEY" in refused.err
        assert cli("list", PERDURE_API_KEY="pd_nonsense").code == 5
        made = perdure("api-key", "create", "--name", "ops", "--role", "operator", "--dsn", dsn, "-n", "default")
        assert made.code == 0, made.err
        key = made.out.strip()
        assert cli("list", "--api-key", key).code == 0
        assert cli("api-key", "list", "--api-key", key).code == 5, "an operator may not look at keys"
        assert httpx2.get(f"{one.http}/readyz", timeout=120).status_code == 200, "probes have no key"
        admin = perdure("api-key", "create", "--name", "boss", "--role", "admin", "--dsn", dsn).out.strip()
        assert cli("namespace", "create", "shop", "--api-key", admin).code == 0
        assert "shop" in cli.ok("namespace", "list", "--api-key", admin)
        assert cli("list", "-n", "shop", "--api-key", admin).code == 0
        assert cli("list", "-n", "shop", "--api-key", key).code == 4, "another namespace does not exist"
        ident = key.split("_")[1]
        assert cli("api-key", "revoke", ident, "--api-key", admin).code == 0
        assert cli("list", "--api-key", key).code == 5
        assert "key.revoke" in cli.ok("audit", "--api-key", admin)
        assert cli("namespace", "delete", "shop", "--api-key", admin).code == 0
        assert one.program.stop() == 0


@pytest.mark.usefixtures("processes")
def test_a_worker_without_a_key_is_told_so(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    with server(dsn, tmp_path) as one:
        with started("worker", "flows.py", "--server", one.grpc, cwd=tmp_path) as worker:
            assert worker.process.wait(120) == 5
            assert "PERDURE_API_KEY" in worker.rest()
        key = perdure("api-key", "create", "--name", "w", "--role", "worker", "--dsn", dsn, "-n", "default").out.strip()
        with started("worker", "flows.py", "--server", one.grpc, cwd=tmp_path, PERDURE_API_KEY=key) as worker:
            worker.until("connected")
            assert worker.stop(signal.SIGTERM) == 0


@pytest.mark.usefixtures("processes")
def test_a_worker_finishes_its_tasks_when_told_to_stop(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    os.mkfifo(tmp_path / "gate")
    with server(dsn, tmp_path, "--auth", "open") as one:
        cli = Cli(one.http, tmp_path)
        with started("worker", "flows", "--server", one.grpc, cwd=tmp_path) as worker:
            worker.until("connected")
            run = cli.ok("run", "slowly").split("\t")[0]
            worker.until("slow began")
            worker.process.send_signal(signal.SIGTERM)
            worker.until("waiting for running tasks")
            (tmp_path / "gate").write_text("slow ended")
            assert worker.process.wait(120) == 0
        with started("worker", "flows", "--server", one.grpc, cwd=tmp_path) as worker:
            assert cli("watch", run).code == 0
            worker.stop()
            assert "slow began" not in worker.rest(), "its result was not lost"


@pytest.mark.usefixtures("processes")
def test_a_worker_waits_for_its_server(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    with started("worker", "flows", "--server", f"127.0.0.1:{free_port()}", cwd=tmp_path) as worker:
        worker.until("serving workflow slowly and task slow")
        worker.until("no answer from the server")
        assert worker.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("option", ["--http", "--grpc", "--metrics"])
def test_a_port_that_is_taken(dsn: str, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = [w for o in ("--http", "--grpc") if o != option for w in (o, "127.0.0.1:0")]
        done = perdure("server", "--dsn", dsn, "--auth", "open", option, address, *free)
    assert done.code == 1
    assert f"cannot listen on {address}" in done.err and option in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--auth", "open", "--http", "0.0.0.0:0"], 2, "would make every client that reaches it an administrator"),
        (["--auth", "perhaps"], 2, "--auth"),
        (["--http", "nonsense:port"], 2, "--http: 'nonsense:port' is not host:port"),
        (["--tls-cert", __file__], 2, "PERDURE_TLS_KEY"),
        (["--no-migrate"], 1, "perdure migrate"),
    ],
)
def test_servers_that_cannot_be_started(bare_dsn: str, words: list[str], code: int, said: str) -> None:
    done = perdure("server", "--dsn", bare_dsn, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err and "Traceback" not in done.err


def test_a_database_that_is_not_there() -> None:
    dsn = f"postgresql://x:y@127.0.0.1:{free_port()}/z"
    done = perdure("server", "--dsn", dsn, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    assert done.code == 5 and done.err.startswith("perdure: PostgreSQL at postgresql://x@127.0.0.1")


@pytest.mark.usefixtures("processes")
def test_metrics_have_an_address_of_their_own(dsn: str, tmp_path: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    with server(dsn, tmp_path, "--auth", "open", "--metrics", metrics) as one:
        assert httpx2.get(f"http://{metrics}/metrics", timeout=120).status_code == 200
        assert httpx2.get(f"{one.http}/metrics", timeout=120).status_code == 404
        assert httpx2.get(f"{one.http}/livez", timeout=120).status_code == 200
        assert one.program.stop() == 0


@pytest.mark.usefixtures("processes")
def test_links_begin_with_the_public_address(dsn: str, tmp_path: Path) -> None:
    words = (
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--auth",
        "open",
        "--public-url",
        "https://flows.example",
    )
    with started("server", "--dsn", dsn, *words, cwd=tmp_path, PERDURE_LOG_FORMAT="json") as program:
        assert "https://flows.example" in program.until("ready")
        assert program.stop() == 0


@pytest.mark.usefixtures("processes")
def test_readiness_ends_before_the_server_does(dsn: str, tmp_path: Path) -> None:
    """A load balancer that asks meanwhile is told to go elsewhere; requests are still answered."""
    with server(dsn, tmp_path, "--auth", "open", PERDURE_NOT_READY="2s") as one:
        one.program.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        until_sync(lambda: httpx2.get(f"{one.http}/readyz", timeout=2).status_code == 503, within_s=2)
        assert "draining" in httpx2.get(f"{one.http}/readyz", timeout=120).text
        assert perdure("list", PERDURE_URL=one.http).code == 0
        assert one.program.process.wait(120) == 0
        assert time.monotonic() - began < 15


SCHEDULED = """
from perdure import Schedule, workflow

@workflow
async def tidy(days: int) -> int:
    return days

nightly = Schedule("tidy-nightly", tidy.bind(30), cron="0 3 * * *", tz="Europe/Paris", attributes={"team": "ops"})
hourly = Schedule("tidy-hourly", tidy.options(timeout="5m").bind(1), every="1h")
print("the module is imported")
"""


@pytest.mark.usefixtures("processes")
def test_schedules_of_modules_are_applied_by_a_worker_and_by_hand(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(SCHEDULED)
    with server(dsn, tmp_path, "--auth", "open") as one:
        cli = Cli(one.http, tmp_path)
        by_hand = cli.ok("schedule", "apply", str(tmp_path / "jobs.py"))
        # The command runs in the process of the tests, which have schedules of their own.
        mine = [line.split("\t")[:2] for line in by_hand.splitlines() if line.startswith("tidy-")]
        assert mine == [["tidy-hourly", "active"], ["tidy-nightly", "active"]]
        before = json.loads(cli.ok("schedule", "show", "tidy-nightly", "-o", "json"))
        assert before["spec"] == {"cron": "0 3 * * *", "tz": "Europe/Paris"}
        assert (before["input"], before["attributes"], before["origin"]) == ({"days": 30}, {"team": "ops"}, "code")
        cli.ok("schedule", "delete", "tidy-hourly")
        with started("worker", "jobs", "--server", one.grpc, "--apply-schedules", cwd=tmp_path) as worker:
            worker.until("applied schedule tidy-hourly")
            worker.until("applied schedule tidy-nightly")
            assert json.loads(cli.ok("schedule", "show", "tidy-nightly", "-o", "json"))["spec"] == before["spec"]
            assert worker.stop(signal.SIGTERM) == 0


@pytest.mark.usefixtures("processes")
def test_a_worker_that_may_not_apply_its_schedules_ends_with_an_error(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(SCHEDULED)
    key = perdure("api-key", "create", "--name", "w", "--role", "worker", "--dsn", dsn, "-n", "default").out.strip()
    with (
        server(dsn, tmp_path) as one,
        started("worker", "jobs", "--server", one.grpc, "--apply-schedules", "--api-key", key, cwd=tmp_path) as worker,
    ):
        worker.until("does not have the permission")
        assert worker.process.wait(120) == 5
