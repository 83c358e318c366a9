"""Flows of object-store jobs: spread by count and by items, and with a worker that is written from the protocol's text alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import RunFailed
from perdure.executors.objects.executor import ObjectsExecutor, ObjectsOptions
from tests.executors.flows_of_jobs import block, run_flow

pytestmark = pytest.mark.usefixtures("interpreter")

PERDURE = f"{Path(sys.executable).parent}/perdure"
FOREIGN = '''\
"""Reads TASK_SPEC_PATH, writes status.json as its heartbeat, output.json and the status at the end. It knows nothing of Perdure."""
import json, os, sys, threading, urllib.parse
if os.fork():
    sys.exit(0)
place = os.path.dirname(urllib.parse.urlparse(os.environ["TASK_SPEC_PATH"]).path)

def write(name, value):
    with open(f"{place}/.{name}", "w") as file:
        json.dump(value, file)
    os.rename(f"{place}/.{name}", f"{place}/{name}")

spec = json.load(open(f"{place}/spec.json"))
write("status.json", {"status": "running", "heartbeat": 0})
ended = threading.Event()

def beat():
    while not ended.wait(10):
        write("status.json", {"status": "running", "heartbeat": 1})

thread = threading.Thread(target=beat)
thread.start()
given = {**(spec["input"] or {}), **spec.get("upstream", {})}
ended.set()
thread.join()
if given.get("fail"):
    write("status.json", {"status": "failed", "error": "it was asked to fail"})
    sys.exit(1)
write("output.json", {"doubled": 2 * given["n"], "task": spec["task_name"], "attempt": spec["attempt"]})
write("status.json", {"status": "success"})
'''


def executor(folder: Path, launch: str = f"{PERDURE} job --detach {{spec}}") -> ObjectsExecutor:
    return ObjectsExecutor(ObjectsOptions(store=str(folder / "store"), launch=launch, poll_s=0.2))


CONTEXT = (
    'printf \'{"index": %s, "of": %s, "input": %s}\' $PERDURE_PARALLEL_INDEX $PERDURE_PARALLEL_COUNT "$PERDURE_INPUT"'
)


async def test_a_static_spread(dsn: str, tmp_path: Path) -> None:
    text = f"""
    flow: static
    tasks:
      process:
        parallel: 4
        job: {{executor: objects, command: {json.dumps(CONTEXT)}, parallel_index: "${{ index }}", parallel_count: "${{ count }}"}}
    """
    done: Any = await run_flow(dsn, executor(tmp_path), text)
    assert sorted((one["index"], one["of"]) for one in _values(done)) == [(n, 4) for n in range(4)]


async def test_a_spread_by_the_items_of_an_earlier_job(dsn: str, tmp_path: Path) -> None:
    text = f"""
    flow: dynamic
    tasks:
      discover:
        job: {{executor: objects, command: [echo, '{{"files": ["a.csv", "b.csv", "c.csv"], "count": 2}}']}}
      process:
        depends_on: [discover]
        foreach: discover.files
        concurrency: 2
        job:
          executor: objects
          command: {json.dumps(CONTEXT)}
          input: {{item: "${{ item }}"}}
          parallel_index: "${{ index }}"
          parallel_count: "${{ count }}"
    output: "${{ process }}"
    """
    done = await run_flow(dsn, executor(tmp_path), text)
    assert [(one["index"], one["of"], one["input"]["item"]) for one in done] == [
        (0, 3, "a.csv"),
        (1, 3, "b.csv"),
        (2, 3, "c.csv"),
    ]


async def test_a_worker_that_knows_only_the_protocol(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(FOREIGN)
    text = """
    flow: foreign
    tasks:
      first: {job: {executor: objects, command: [ignored], input: {n: 4}}}
      second:
        depends_on: [first]
        job: {executor: objects, command: [ignored], upstream: {n: "${ first.doubled }"}}
    output: "${ second }"
    """
    launch = f"{sys.executable} {tmp_path / 'worker.py'}"
    done = await run_flow(dsn, executor(tmp_path, launch), text)
    assert done == {"doubled": 16, "task": "perdure.job.objects", "attempt": 1}


async def test_a_failure_of_such_a_worker_fails_the_run(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(FOREIGN)
    text = "{flow: failing, tasks: {one: {retry: {max_attempts: 1}, job: {executor: objects, command: [x], input: {fail: true}}}}}"
    with pytest.raises(RunFailed, match="it was asked to fail"):
        await run_flow(dsn, executor(tmp_path, f"{sys.executable} {tmp_path / 'worker.py'}"), text)


async def test_the_flow_of_the_page(dsn: str, tmp_path: Path) -> None:
    bin_ = tmp_path / "etl"
    bin_.write_text('#!/bin/sh\necho "{\\"did\\": \\"$1\\", \\"of\\": $PERDURE_INPUT}"\n')
    bin_.chmod(0o755)
    text = block("run-object-store-jobs.md", "yaml").replace("[etl, load]", f"[{bin_}, load]")
    done = await run_flow(dsn, executor(tmp_path), text, day="2026-11-16")
    assert _values(done) == [{"did": "load", "of": {"day": "2026-11-16"}}]


def _values(done: Any) -> list[Any]:
    """The results of the only task."""
    (value,) = done.values() if isinstance(done, dict) and len(done) == 1 else (done,)
    return value if isinstance(value, list) else [value]
