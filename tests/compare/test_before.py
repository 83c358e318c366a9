"""The programs of other tools, with the tools themselves: they give the result and have the effects that their replacements do.

Those that are quick to install and to run always run; PERDURE_PEERS=1 (`just compare`) adds those that are not.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from tests.cli.processes import free_port, started
from tests.compare.environments import installed
from tests.compare.programs import MIGRATE, SOLD, call, effects, environment, fulfilled
from tests.fakes.waiting import until_sync

pytestmark = pytest.mark.usefixtures("processes")

READY_S_MAX = 240.0
NUMBER = "A-1"
heavy = pytest.mark.skipif(os.environ.get("PERDURE_PEERS") != "1", reason="installs a large package: PERDURE_PEERS=1")


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "ledger.txt") | {"HOME": str(tmp_path)}


def check(printed: list[str], sold: list[str], variables: dict[str, str]) -> None:
    assert printed[-1] == fulfilled(NUMBER)
    assert sold == [SOLD]
    assert sorted(Path(variables["SHOP_LEDGER"]).read_text().splitlines()) == effects(NUMBER)


@contextmanager
def redis(directory: Path) -> Iterator[str]:
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(directory)]
    with started(*options, program=["redis-server"], cwd=directory) as one:
        one.until("Ready to accept connections", READY_S_MAX)
        yield f"redis://127.0.0.1:{port}"


def test_celery(variables: dict[str, str], tmp_path: Path) -> None:
    bin, folder = installed("celery"), MIGRATE / "celery"
    with redis(tmp_path) as url:
        variables |= {"REDIS_URL": url}
        options = ["-A", "before", "worker", "--beat", "-s", tmp_path / "beat", "-l", "INFO"]
        with started(*options, program=[str(bin / "celery")], cwd=folder, **variables) as worker:
            worker.until("ready.", READY_S_MAX)
            call([bin / "python", "before.py", "order", NUMBER], folder, variables)
            worker.until("asked: ", READY_S_MAX)
            printed = call([bin / "python", "before.py", "approve", NUMBER, "ada"], folder, variables)
            check(printed, call([bin / "python", "before.py", "report"], folder, variables), variables)


def test_temporal(variables: dict[str, str], tmp_path: Path) -> None:
    bin, folder, port = installed("temporal"), MIGRATE / "temporal", free_port()
    variables |= {"TEMPORAL_ADDRESS": f"127.0.0.1:{port}"}
    options = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    with started(*options, program=[str(bin / "temporal")], cwd=tmp_path, HOME=str(tmp_path)) as server:
        server.until("Temporal Metrics", READY_S_MAX)

        def command(*words: str) -> list[str]:
            # A thread of temporalio may return to an interpreter that has ended.
            return call([bin / "python", "before.py", *words], folder, variables, may_die_at_exit=True)

        with started("before.py", "worker", program=[str(bin / "python")], cwd=folder, **variables) as worker:
            command("order", NUMBER)
            worker.until("asked: ", READY_S_MAX)
            printed = command("approve", NUMBER, "ada")
            check(printed, command("report"), variables)


def test_dbos(variables: dict[str, str], bare_dsn: str) -> None:
    bin, folder = installed("dbos"), MIGRATE / "dbos"
    variables |= {"SHOP_DSN": bare_dsn}
    with started("before.py", "serve", program=[str(bin / "python")], cwd=folder, **variables) as application:
        application.until("ready", READY_S_MAX)
        call([bin / "python", "before.py", "order", NUMBER], folder, variables)
        application.until("asked: ", READY_S_MAX)
        printed = call([bin / "python", "before.py", "approve", NUMBER, "ada"], folder, variables)
        check(printed, call([bin / "python", "before.py", "report"], folder, variables), variables)


@heavy
def test_prefect(variables: dict[str, str], tmp_path: Path) -> None:
    bin, folder, port = installed("prefect"), MIGRATE / "prefect", free_port()
    variables |= {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    options = ["server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"]
    with started(*options, program=[str(bin / "prefect")], cwd=tmp_path, **variables):
        answered(f"http://127.0.0.1:{port}/api/health")
        with started("before.py", "serve", program=[str(bin / "python")], cwd=folder, **variables) as runner:
            runner.until("deployments", READY_S_MAX)
            call([bin / "python", "before.py", "order", NUMBER], folder, variables)
            runner.until("asked: ", READY_S_MAX)
            printed = call([bin / "python", "before.py", "approve", NUMBER, "ada"], folder, variables)
            check(printed, call([bin / "python", "before.py", "report"], folder, variables), variables)


@heavy
def test_airflow(variables: dict[str, str], tmp_path: Path) -> None:
    """`airflow dags test` beside an API server, which takes the approval."""
    bin, folder, port = installed("airflow"), MIGRATE / "airflow", free_port()
    variables |= {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "true",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "false",
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
    }
    airflow = [str(bin / "airflow")]
    call([*airflow, "db", "migrate"], tmp_path, variables)
    conf = json.dumps({"number": NUMBER})
    with (
        started("api-server", program=airflow, cwd=tmp_path, **variables),
        started("dags", "test", "fulfil", "--conf", conf, program=airflow, cwd=tmp_path, **variables) as run,
    ):
        run.until("Waiting for Human-in-the-loop input", READY_S_MAX)
        answer_in_airflow(f"http://127.0.0.1:{port}", "ada")
        run.until(fulfilled(NUMBER), READY_S_MAX)
        assert run.process.wait(READY_S_MAX) == 0
    sold = [line for line in call([*airflow, "dags", "test", "nightly_report"], tmp_path, variables) if line == SOLD]
    check([fulfilled(NUMBER)], sold, variables)


def answered(url: str, method: str = "GET", body: Any = None, token: str = "") -> Any:
    """What a server that may still be starting answers, as soon as it does."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()

    def answer() -> str | None:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, headers, method=method), timeout=30
            ) as response:
                return str(response.read().decode())
        except ConnectionError:
            return None
        except URLError as error:
            if isinstance(error.reason, ConnectionError):
                return None
            raise

    return json.loads(until_sync(answer, url, READY_S_MAX))


def answer_in_airflow(server: str, by: str) -> None:
    token = answered(f"{server}/auth/token")["access_token"]
    (asked,) = answered(f"{server}/api/v2/dags/fulfil/dagRuns/~/hitlDetails", token=token)["hitl_details"]
    run = asked["task_instance"]["dag_run_id"].replace("+", "%2B")
    answer = {"chosen_options": ["OK"], "params_input": {"by": by}}
    task = f"{server}/api/v2/dags/fulfil/dagRuns/{run}/taskInstances/approval/-1/hitlDetails"
    answered(task, "PATCH", answer, token)
