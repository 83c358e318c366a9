"""Processes that are killed between storing content and recording who uses it: nothing is lost, doubled or left for ever."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness.proxy import Proxy
from harness.stop_at import StopAt
from harness.storm import fetch_rows
from harness.workloads.payloads import check_references, stored_payloads

from perdure import Client
from perdure.core.payloads import MARK
from tests.cli.live import ROOT
from tests.cli.processes import Program, free_port, server, started
from tests.e2e.harness import payload_kills
from tests.server.remote import worker

pytestmark = pytest.mark.usefixtures("processes")

LONG = "60s"
LARGE = 500_000
"""Characters: more than a payload may have inline, less than a REST request."""


async def counted(dsn: str, table: str) -> int:
    return int((await fetch_rows(dsn, f"select count(*) from perdure.{table}"))[0][0])


def killed(program: Program) -> None:
    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait()


@contextmanager
def worker_process(address: str) -> Iterator[Program]:
    words = ("worker", "tests.e2e.harness.payload_kills", "--server", address)
    with started(*words, cwd=ROOT, PYTHONPATH=str(ROOT), GRPC_VERBOSITY="NONE") as program:
        program.until("connected")
        yield program


async def killed_at_report(address: str, nth: int) -> None:
    """A worker that dies when it has stored its `nth` large result and before the server hears of that."""
    async with StopAt(address, MARK, nth) as stop:
        with ExitStack() as stack:
            program = await asyncio.to_thread(stack.enter_context, worker_process(stop.address))
            await asyncio.wait_for(stop.reached.wait(), 60)
            killed(program)


async def test_a_worker_killed_between_the_upload_of_a_result_and_its_report(dsn: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = await asyncio.to_thread(stack.enter_context, server(dsn, tmp_path, "--auth", "open"))
        async with Client(running.grpc) as client:
            handle = await client.start(payload_kills.results)
            await killed_at_report(running.grpc, 1)  # the result of `same`
            assert await counted(dsn, "payload") == 1 and await counted(dsn, "payload_use") == 0
            await killed_at_report(running.grpc, 2)  # that of `differs`, after `same` was reported
            assert await counted(dsn, "payload") == 2 and await counted(dsn, "payload_use") == 1
            await asyncio.to_thread(stack.enter_context, worker_process(running.grpc))
            same, differs = await handle.result(LONG)
    assert same == f"s {payload_kills.LARGE}" and differs == f"2 {payload_kills.LARGE}"
    assert await counted(dsn, "payload") == 3, "the results of both attempts of `differs`, and that of `same` once"
    async with stored_payloads(dsn) as payloads:
        await payloads.sweep(100)
        assert await counted(dsn, "payload") == 3, "it may still be reported"
        await fetch_rows(dsn, "update perdure.payload set check_at = check_at - interval '1 day 1 minute'")
        await payloads.sweep(100)
        assert await counted(dsn, "payload") == await counted(dsn, "payload_use") == 2
    assert await check_references(dsn) == 2


class KilledServer:
    """A server behind a proxy to its database; it is killed at a commit that `fate` decides about."""

    def __init__(self, stack: ExitStack, cwd: Path, dsn: str) -> None:
        self._stack, self._cwd = stack, cwd
        self.http, self.grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.proxy = Proxy(dsn, self._choose, engines_only=True)
        self.fate, self._reached = "pass", asyncio.Event()

    def _choose(self) -> str:
        if self.fate != "pass":
            self._reached.set()
        return self.fate

    async def start(self) -> None:
        self.program = await asyncio.to_thread(self._started)

    def _started(self) -> Program:
        address = ("--http", self.http, "--grpc", self.grpc, "--auth", "open")
        lease = {"PERDURE_ENGINE_LEASE_S": "3s", "PERDURE_ENGINE_HEARTBEAT_S": "500ms"}
        words = ("server", "--dsn", self.proxy.dsn, *address)
        program = self._stack.enter_context(started(*words, cwd=self._cwd, **lease))
        program.until("Perdure is ready")
        return program

    async def killed(self) -> None:
        """When the commit has come. Until the server is dead none passes."""
        await asyncio.wait_for(self._reached.wait(), 60)
        killed(self.program)
        self.fate = "pass"
        self._reached.clear()


async def test_a_server_killed_between_a_payload_of_a_request_and_its_run(dsn: str, tmp_path: Path) -> None:
    """And between the commit and the answer. Each time the client sends the same request again."""
    with ExitStack() as stack:
        one = KilledServer(stack, tmp_path, dsn)

        async def started_run(key: str) -> Any:
            return await http.post("/workflows/kills.measured/runs", json=body(key), headers={"Idempotency-Key": key})

        def body(key: str) -> Any:
            return {"input": {"text": key * LARGE}}

        async with (
            one.proxy,
            httpx2.AsyncClient(base_url=f"http://{one.http}/api/v1", timeout=120) as http,
        ):
            await one.start()
            async with worker(one.grpc):
                for contents, (key, fate) in enumerate([("1", "lose_request"), ("2", "lose_answer")], start=1):
                    one.fate = fate
                    asked = asyncio.create_task(started_run(key))
                    await one.killed()
                    with suppress(httpx2.HTTPError):
                        assert (await asked).status_code >= 500, "it was not answered, or not with success"
                    assert await counted(dsn, "payload") == contents
                    assert await counted(dsn, "run_queue") == (fate == "lose_answer")
                    await one.start()
                    answer = await started_run(key)
                    assert answer.status_code in (200, 201), answer.text
                    result = await http.get(f"/runs/{answer.json()['id']}/result", params={"wait": 50})
                    assert result.json()["result"] == LARGE, result.text
    assert (await counted(dsn, "payload"), await counted(dsn, "run")) == (2, 2)
    assert await check_references(dsn) == 2
