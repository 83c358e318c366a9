"""Why a run waits: each reason is made for real, on a server with workers, and read in the same words from REST, `show` and `list --waiting-on`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from perdure.core.wait_reasons import CODES
from perdure.localpg.cluster import PrivateCluster
from perdure.server.rest.models import WaitWord
from tests.cli.live import ROOT, Cli
from tests.cli.processes import Running, server, started
from tests.fakes.waiting import until_sync

FLOW = """
flow: wait_dependency
tasks:
  review: {approval: {assignees: [ops]}}
  publish: {depends_on: [review], value: {done: true}}
"""


@pytest.fixture(scope="module")
def place(processes: None, cluster: PrivateCluster, migrated_template: str) -> Iterator[Running]:
    dsn = cluster.create_database("why_live", template=migrated_template)
    queues = "default,paused"
    with (
        server(dsn, ROOT, "--auth", "open", PERDURE_ENGINE_LEASE_S="5s", PERDURE_ENGINE_HEARTBEAT_S="1s") as one,
        started(
            "worker", "tests.cli.waits", "--server", one.grpc, "--queue", queues, "--slots", "2", cwd=ROOT
        ) as worker,
    ):
        worker.until("connected")
        yield one
    cluster.drop_database("why_live")


@pytest.fixture
def cli(place: Running, tmp_path: Path) -> Cli:
    return Cli(place.http, tmp_path)


def begin(cli: Cli, *words: str) -> str:
    return cli.ok("run", *words).split("\t")[0].strip()


def rest(place: Running, path: str, **params: Any) -> Any:
    answer = httpx2.get(f"{place.http}/api/v1{path}", params=params, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def waits(place: Running, cli: Cli, run: str, code: str, *words: str, within_s: float = 20.0) -> str:
    """The run comes to wait for this, and every interface says so in the same words. Returns them."""

    def found() -> tuple[str, str] | None:
        """The text of this wait, and the reason that is shown for the run."""
        waiting = rest(place, f"/runs/{run}")["waiting"] or {"waits": []}
        texts = [w["text"] for w in waiting["waits"] if w["on"] == code]
        listed = [r for r in rest(place, "/runs", waiting_on=code)["items"] if r["id"] == run]
        return (texts[0], waiting["reason"]) if texts and listed else None

    text, reason = until_sync(found, f"run {run} waits on {code}", within_s)
    for word in words:
        assert word in text
    assert text in reason or code == "dependency"
    shown = " ".join(cli.ok("show", run, tty=True, NO_COLOR="1", COLUMNS="400").split())
    assert text in shown
    lines = cli("list", "--waiting-on", code).lines
    (line,) = [one for one in lines if one[0] == run]
    assert text in line[-1]
    as_json = json.loads(cli.ok("list", "--waiting-on", code, "-o", "json"))
    assert text in next(r for r in as_json if r["id"] == run)["waiting"]["reason"]
    return text


def test_there_is_a_test_for_every_reason() -> None:
    tested = {name.removeprefix("test_waiting_on_") for name in globals() if name.startswith("test_waiting_on_")}
    assert tested == set(CODES) == set(get_args(WaitWord))


def test_waiting_on_timer(place: Running, cli: Cli) -> None:
    waits(place, cli, begin(cli, "wait_timer"), "timer", "a timer until ", " UTC")


def test_waiting_on_signal(place: Running, cli: Cli) -> None:
    run = begin(cli, "wait_signal")
    assert waits(place, cli, run, "signal") == "a signal 'go'"
    cli.ok("signal", run, "go", '"on"')
    assert cli("watch", run).code == 0


def test_waiting_on_promise(place: Running, cli: Cli) -> None:
    assert waits(place, cli, begin(cli, "wait_promise"), "promise") == "the promise 'value'"


def test_waiting_on_approval(place: Running, cli: Cli) -> None:
    text = waits(place, cli, begin(cli, "wait_approval"), "approval")
    assert text == "the approval 'publish' by ops, lead"


def test_waiting_on_event(place: Running, cli: Cli) -> None:
    text = waits(place, cli, begin(cli, "wait_event", "order=7"), "event")
    assert text == "an event 'order.paid' that matches event.order == input.order"


def test_waiting_on_update(place: Running, cli: Cli) -> None:
    assert waits(place, cli, begin(cli, "wait_update"), "update") == "an update 'change'"


def test_waiting_on_child(place: Running, cli: Cli) -> None:
    run = begin(cli, "wait_child")
    text = waits(place, cli, run, "child", "child run ")
    children = [r for r in rest(place, "/runs", workflow="wait_timer")["items"] if r["parent_id"] == run]
    assert text == f"child run {children[0]['id']}"


def test_waiting_on_limit(place: Running, cli: Cli) -> None:
    first = begin(cli, "wait_limit")
    until_sync(lambda: any(rest(place, f"/runs/{first}")["tasks"][status] for status in ("running", "dispatched")))
    second = begin(cli, "wait_limit")
    text = waits(place, cli, second, "limit")
    assert text == f"the limit task/limited_task of 1 at a time, held by {first}"
    cli.ok("cancel", second)
    holder = begin(cli, "wait_run_limit")
    until_sync(lambda: rest(place, f"/runs/{holder}")["status"] == "running")
    waiting = begin(cli, "wait_run_limit")
    text = waits(place, cli, waiting, "limit")
    assert text == f"the limit workflow/wait_run_limit of 1 at a time, held by {holder}"
    cli.ok("cancel", holder)
    cli.ok("cancel", first)


def test_waiting_on_rate(place: Running, cli: Cli) -> None:
    waits(place, cli, begin(cli, "wait_rate"), "rate", "the rate of task/rated_task, refilled at ")


def test_waiting_on_paused(place: Running, cli: Cli) -> None:
    cli.ok("queue", "pause", "paused", "--reason", "moving house")
    try:
        text = waits(place, cli, begin(cli, "wait_paused"), "paused")
        assert text.startswith("queue/paused to be resumed, paused by ") and text.endswith(": moving house")
    finally:
        cli.ok("queue", "resume", "paused")


def test_waiting_on_retry(place: Running, cli: Cli) -> None:
    waits(place, cli, begin(cli, "wait_retry"), "retry", "attempt 2 of 5 of the task 'failing_task' at ")


def test_waiting_on_no_worker(place: Running, cli: Cli) -> None:
    text = waits(place, cli, begin(cli, "wait_worker"), "no_worker")
    assert text == "a worker that serves the task 'unserved_task' on queue 'nobody': none is connected"


VERSIONED = """
from perdure import Signal, workflow

go = Signal("go", str)


@workflow(version="{label}", versioning="pinned")
async def wait_version() -> str:
    return await go.next()
"""


def test_waiting_on_no_worker_for_version(place: Running, cli: Cli, tmp_path: Path) -> None:
    """The worker of the first version goes, one of the second comes."""
    module = tmp_path / "wait_versions.py"
    words = ("worker", "wait_versions", "--server", place.grpc)
    module.write_text(VERSIONED.format(label="one"))
    with started(*words, cwd=tmp_path) as worker:
        worker.until("connected")
        run = begin(cli, "wait_version")
        waits(place, cli, run, "signal")
    module.write_text(VERSIONED.format(label="two"))
    with started(*words, cwd=tmp_path) as worker:
        worker.until("connected")
        cli.ok("signal", run, "go", '"x"')
        waits(place, cli, run, "no_worker_for_version", "one")
    cli.ok("terminate", run)


def test_waiting_on_slot(place: Running, cli: Cli) -> None:
    runs = [begin(cli, "wait_slot") for _ in range(4)]
    try:
        waiting = until_sync(
            lambda: [r["id"] for r in rest(place, "/runs", waiting_on="slot")["items"] if r["id"] in runs]
        )
        waits(place, cli, waiting[0], "slot", "a free slot for", "long_task", "all workers that serve it", "are busy")
    finally:
        for run in runs:
            cli.ok("cancel", run)


def test_waiting_on_task(place: Running, cli: Cli) -> None:
    run = begin(cli, "wait_slot")
    assert waits(place, cli, run, "task") == "the task long_task"
    cli.ok("cancel", run)


def test_waiting_on_dependency(place: Running, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    cli.ok("deploy", str(tmp_path / "flow.yaml"))
    run = begin(cli, "wait_dependency")
    assert waits(place, cli, run, "dependency") == "node 'review' to end before 'publish' begins"
    assert waits(place, cli, run, "approval") == "the approval 'review' by ops"


def test_waiting_on_version(place: Running, cli: Cli) -> None:
    with started("worker", "tests.cli.changing", "--server", place.grpc, cwd=ROOT) as worker:
        worker.until("connected")
        assert worker.stop() == 0
    text = waits(place, cli, begin(cli, "changing"), "version")
    assert text == "a worker that has version 1 of the workflow 'changing': none is connected"


def test_waiting_on_stuck(place: Running, cli: Cli) -> None:
    with started("worker", "tests.cli.changing", "--server", place.grpc, cwd=ROOT) as worker:
        worker.until("connected")
        run = begin(cli, "changing")
        until_sync(lambda: rest(place, f"/runs/{run}")["tasks"]["success"] == 1)
        assert worker.stop() == 0
    with started("worker", "tests.cli.changing", "--server", place.grpc, cwd=ROOT, CLI_TESTS_SHAPE="other") as worker:
        worker.until("connected")
        waits(place, cli, run, "stuck", "a manual resume: nondeterminism")


def test_a_word_that_is_no_reason_is_told_with_those_there_are(cli: Cli) -> None:
    done = cli("list", "--waiting-on", "aproval")
    assert done.code == 2
    assert "did you mean 'approval'?" in done.err


def test_metrics_count_by_the_same_words(place: Running, cli: Cli) -> None:
    begin(cli, "wait_signal")

    def counted() -> list[str]:
        lines = httpx2.get(f"{place.http}/metrics", timeout=120).text.splitlines()
        return [x for x in lines if x.startswith("perdure_waiting{") and 'reason="signal"' in x and 'what="run"' in x]

    until_sync(counted)
