"""One trace from the caller's span through runs and tasks to the user's own spans, over processes that never met."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from perdure.core import ids
from perdure.core.trace import TraceParent, parse, run_span_id, run_traceparent
from perdure.sdk.traceparent import current_traceparent

ROOT = Path(__file__).parents[2]
PROCESSES = "tests.server.tracing_processes"
PERDURE = ("-c", "from perdure.cli.main import main; main()")
PROCESS_S_MAX = 40
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SERVER, INTERNAL, CONSUMER = 2, 1, 5  # OTLP's numbers
ERROR = 2

# -- the place of a run in a trace ----------------------------------------------------------------------------------


def test_a_header_is_read_as_the_standard_says() -> None:
    assert parse(CALLER) == TraceParent("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 1)
    assert str(parse(CALLER)) == CALLER
    assert parse("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-and-more") is not None, "of a later version"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        CALLER[:-3],
        CALLER + "-more",
        CALLER.upper(),
        "ff" + CALLER[2:],
        CALLER.replace("4bf9", "4bfg"),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
def test_a_header_that_is_none_is_no_parent(wrong: str) -> None:
    assert parse(wrong) is None
    run = ids.run_id(1_800_000_000_000, 0, 7)
    assert run_traceparent(run, wrong) == run_traceparent(run, "")


def test_a_run_continues_its_callers_trace_and_follows_its_sampling() -> None:
    run = ids.run_id(1_800_000_000_000, 0, 7)
    own = parse(run_traceparent(run, CALLER))
    assert own == TraceParent("4bf92f3577b34da6a3ce929d0e0e4736", run_span_id(run), 1)
    unsampled = parse(run_traceparent(run, CALLER[:-1] + "0"))
    assert unsampled is not None
    assert not unsampled.sampled


def test_a_run_that_nobody_traced_is_a_trace_of_its_own() -> None:
    run = ids.run_id(1_800_000_000_000, 0, 7)
    assert parse(run_traceparent(run, "")) == TraceParent(run.hex(), run_span_id(run), 1)
    assert run_span_id(run) != run_span_id(ids.run_id(1_800_000_000_000, 0, 8))


# -- what costs nothing when nobody asks ----------------------------------------------------------------------------


@pytest.mark.usefixtures("interpreter")
def test_opentelemetry_is_not_even_imported_unless_somebody_asks(dsn: str) -> None:
    code = f"""
import asyncio, sys
from perdure import Perdure, task, workflow
@task
async def one() -> int: return 1
@workflow
async def flow() -> int: return await one()
async def main():
    async with Perdure({dsn!r}):
        assert await flow.run() == 1
asyncio.run(main())
assert not [m for m in sys.modules if m.startswith("opentelemetry")], "imported"
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_without_a_span_a_start_carries_no_trace() -> None:
    assert current_traceparent() == ""


# -- the whole ------------------------------------------------------------------------------------------------------


@dataclass
class Span:
    service: str
    name: str
    kind: int
    trace: str
    span: str
    parent: str
    start: int
    end: int
    status: int
    message: str
    events: list[str]
    attributes: dict[str, Any]


@contextmanager
def process(*command: str, says: str, **environment: str) -> Iterator[str]:
    """A process that lives until the test is done with it. Yields its first line that holds `says`."""
    started = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=clean_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    try:
        heard: list[str] = []
        for line in started.stdout:
            heard.append(line)
            if says in line:
                yield line.strip()
                break
        else:
            pytest.fail(f"{command} ended early:\n{''.join(heard)}")
    finally:
        started.terminate()
        rest = started.stdout.read()
        started.stdout.close()
        code = started.wait(PROCESS_S_MAX)
    assert code in (0, -15), rest


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PERDURE_"))}


@contextmanager
def embedded(dsn: str, **environment: str) -> Iterator[dict[str, str]]:
    """Two engines with a worker each, that serve different queues: some tasks are executed where their run is not."""
    run = ("-m", f"{PROCESSES}.serving")
    with process(*run, "default", says="serving", PERDURE_DSN=dsn, **environment):
        with process(*run, "far", says="serving", PERDURE_DSN=dsn, **environment):
            yield {"PERDURE_DSN": dsn}


@contextmanager
def remote(dsn: str, **environment: str) -> Iterator[dict[str, str]]:
    """A server, and a worker that knows no database."""
    http, grpc = (f"127.0.0.1:{free_port()}" for _ in range(2))
    server = ("server", "--dsn", dsn, "--http", http, "--grpc", grpc, "--auth", "open")
    worker = ("worker", f"{PROCESSES}.flows", "--server", grpc)
    with process(*PERDURE, *server, says="is ready", **environment):
        with process(*PERDURE, *worker, says="connected", **environment):
            yield {"PERDURE_GRPC": grpc}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port: int = s.getsockname()[1]
        return port


def trace_everything(
    dsn: str, file: Path, where: Callable[..., AbstractContextManager[dict[str, str]]]
) -> tuple[list[Span], dict[str, str]]:
    """The spans that arrived, and the ids of the runs by how they were started."""
    with process("-m", f"{PROCESSES}.receiver", str(file), says="") as port:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        with where(dsn, **environment) as there:
            caller = [sys.executable, "-m", f"{PROCESSES}.caller"]
            done = subprocess.run(
                caller,
                cwd=ROOT,
                env=clean_environment() | environment | there,
                capture_output=True,
                text=True,
                timeout=PROCESS_S_MAX,
                check=False,
            )
            assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [rest for _, rest in lines] == ["HELLO YOU", "HELLO ME", "failed"]
    spans = [Span(**json.loads(line)) for line in file.read_text().splitlines()]
    return spans, dict(zip(("traced", "untraced", "doomed"), (run_id for run_id, _ in lines), strict=True))


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("where", "services"), [(embedded, ("perdure", "perdure")), (remote, ("perdure-server", "perdure-worker"))]
)
def test_spans_of_all_processes_are_one_trace(
    dsn: str, tmp_path: Path, where: Callable[..., AbstractContextManager[dict[str, str]]], services: tuple[str, str]
) -> None:
    spans, runs = trace_everything(dsn, tmp_path / "spans.jsonl", where)
    caller = one(spans, "handle request")
    assert caller.service == "caller"
    tree = tree_of([s for s in spans if s.trace == caller.trace])
    expected = {
        "handle request": None,
        "run outer": "handle request",
        "run inner": "run outer",
        "task greet": "run inner",
        "polish the greeting": "task greet",
        "task wobbly #1": "run outer",
        "task wobbly #2": "run outer",
        "task far_away": "run outer",
        "task shout": "run outer",
        "find the loud letters": "task shout",
    }
    assert tree == expected
    mine = [s for s in spans if s.trace == caller.trace]
    outer = one(mine, "run outer")
    assert outer.span == run_span_id(ids.parse(runs["traced"]))
    assert (outer.kind, outer.status, outer.attributes["perdure.status"]) == (SERVER, 0, "success")
    assert outer.attributes["perdure.run_id"] == runs["traced"]
    assert {s.service for s in mine if s.name.startswith("run ")} == {services[0]}
    assert {s.service for s in mine if not s.name.startswith(("run ", "handle"))} == {services[1]}
    check_times(mine)
    check_attempts(mine)

    nobody = [s for s in spans if s.trace == ids.parse(runs["untraced"]).hex()]
    assert tree_of(nobody) == {k: v for k, v in expected.items() if k != "handle request"} | {"run outer": None}
    failed = one(spans, "run doomed")
    assert (failed.status, failed.message, failed.parent) == (ERROR, "run_failed: no way out", "")
    assert failed.attributes["error.type"]
    if where is remote:
        check_metrics(rows(tmp_path / "spans.jsonl.metrics"))
        check_logs(rows(tmp_path / "spans.jsonl.logs"), runs["traced"])


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def check_metrics(found: list[dict[str, Any]]) -> None:
    """The last export is made when the server stops, so it has everything."""
    assert {row["service"] for row in found} == {"perdure-server"}
    last = {row["name"]: row for row in found}
    assert (last["perdure_runs_started"]["kind"], last["perdure_runs_failed"]["value"]) == ("sum", 1)
    commits = last["perdure_commit_duration_seconds"]
    assert commits["kind"] == "histogram" and sum(commits["buckets"]) == commits["value"] > 0
    assert last["perdure_runs_in_memory_limit"]["kind"] == "gauge"
    assert last["perdure_build_info"]["attributes"] == {"version": version("perdure")}


def check_logs(found: list[dict[str, Any]], run_id: str) -> None:
    """A record of a task says which run it belongs to."""
    row = next(row for row in found if row["body"] == "wobbling")
    assert (row["service"], row["level"], row["logger"]) == ("perdure-worker", "WARN", PROCESSES + ".flows")
    assert (row["attributes"]["task"], row["attributes"]["colour"]) == ("wobbly", "green")
    assert run_id in {row["attributes"].get("run_id") for row in found}
    assert not [row for row in found if row["logger"].startswith("opentelemetry")]


def one(spans: list[Span], name: str) -> Span:
    (found,) = [s for s in spans if s.name == name]
    return found


def label(s: Span) -> str:
    return s.name if s.name != "task wobbly" else f"{s.name} #{s.attributes['perdure.attempt']}"


def tree_of(spans: list[Span]) -> dict[str, str | None]:
    """Span -> parent, by name. A parent that did not arrive is an error; no parent is None."""
    by_id = {s.span: s for s in spans}
    assert len(by_id) == len(spans), "a span id was used twice"
    return {label(s): label(by_id[s.parent]) if s.parent else None for s in spans}


def check_times(spans: list[Span]) -> None:
    """A child that belongs to the work of its parent lies within it. The caller only started the run."""
    by_id = {s.span: s for s in spans}
    slack_ns = 5_000_000  # the engine's clock is the database's, as it estimates it
    for s in spans:
        assert s.start <= s.end
        parent = by_id.get(s.parent)
        if parent is not None and parent.name != "handle request":
            assert parent.start - slack_ns <= s.start, (parent.name, s.name)
            assert s.end <= parent.end + slack_ns, (parent.name, s.name)


def check_attempts(spans: list[Span]) -> None:
    first, second = sorted((s for s in spans if s.name == "task wobbly"), key=lambda s: s.attributes["perdure.attempt"])
    assert (first.status, first.message, first.events) == (ERROR, "ValueError: not yet", ["exception"])
    assert second.status == 0
    assert first.attributes["error.type"] == "ValueError" and "error.type" not in second.attributes
    assert {s.kind for s in (first, second)} == {CONSUMER}
    assert first.attributes["perdure.task"] == "wobbly"
    assert first.attributes["perdure.run_id"] == second.attributes["perdure.run_id"]
    assert {s.attributes["perdure.queue"] for s in (first, second)} == {"default"}
