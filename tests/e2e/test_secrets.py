"""A secret that flows and workflows use is found nowhere afterwards: not in the database and its files, logs, traces or answers of a server."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
from harness import secret_tasks

from perdure.localpg.cluster import PrivateCluster
from tests.cli.processes import Running, server, started
from tests.fakes.waiting import until
from tests.server.test_tracing import process

RUNS = int(os.environ.get("PERDURE_SECRET_RUNS", "100"))
"""Runs in all: half of the flow, half of the workflow."""
AT_ONCE = 50
TESTS = Path(__file__).parents[1]
FLOW = """
flow: secret_flow
input:
  url: {type: string}
  n: {type: integer}
  data: {}
tasks:
  call:
    http:
      url: "${ input.url }"
      headers:
        Authorization: "Bearer ${ secret.API_TOKEN }"
      query:
        n: "${ input.n }"
  command:
    depends_on: [call]
    run:
      command: [sh, -c, 'printf %s "$TOKEN" | sha256sum; echo "token=$TOKEN" >&2; printf %s "$TOKEN" | base64 -w0 >&2; printf "%s" "$DATA"']
      env:
        TOKEN: "${ secret.API_TOKEN }"
        DATA: "${ input.data }"
  refused:
    depends_on: [command]
    python: secret_raised
    with:
      token: "${ secret.API_TOKEN }"
    retry: 1
"""
FORGED = '{"$secret": "API_TOKEN"}'
"""Data of a run that has the text of a reference."""


class Receiver:
    """Counts what requests are authorized with."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        seen, lock = self.seen, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with lock:
                    seen[self.headers.get("Authorization", "")] += 1
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    @contextmanager
    def serving(self) -> Iterator[Receiver]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


class Evidence:
    """Everything that is left of runs, by where it is."""

    def __init__(self) -> None:
        self.texts: dict[str, list[bytes]] = {}

    def add(self, where: str, data: bytes) -> None:
        self.texts.setdefault(where, []).append(data)

    def places_of(self, value: str) -> set[str]:
        """Where it is found, in any of its forms."""
        forms = forms_of(value)
        return {where for where, texts in self.texts.items() if any(form in text for text in texts for form in forms)}


def forms_of(value: str) -> list[bytes]:
    """Written by hand, so that a form that redaction forgets is searched for all the same."""
    whole = base64.b64encode(value.encode()).decode().rstrip("=")[:-1]
    behind_user = base64.b64encode(f"user:{value}".encode()).decode().rstrip("=")[8:-1]
    half = len(value) // 2
    return [
        f.encode() for f in (value, quote(value, safe=""), quote(value), whole, behind_user, value[:half], value[half:])
    ]


PLACES = {"dump", "files", "server log", "worker log", "traces", "rest", "export", "pages"}
"""Where a value is found that is no secret. Most pages are made of answers in the browser; those of links are made on the server."""


async def test_a_secret_is_found_nowhere(durable_cluster: Callable[..., PrivateCluster], tmp_path: Path) -> None:
    value = f"s3cr/t+{secrets.token_hex(12)}&end"
    control = f"c0ntr/l+{secrets.token_hex(12)}&end"
    cluster = durable_cluster(settings={"fsync": "off", "synchronous_commit": "off"})
    dsn = cluster.start()
    began = time.monotonic()
    with ExitStack() as stack:
        receiver = stack.enter_context(Receiver().serving())
        spans = tmp_path / "spans.jsonl"
        collector = process("-m", "tests.server.tracing_processes.receiver", str(spans), says="")
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{stack.enter_context(collector)}"}
        running = stack.enter_context(
            server(dsn, tmp_path, "--auth", "open", PERDURE_LOG_FORMAT="json", PERDURE_LOG_LEVEL="debug", **environment)
        )
        worker = stack.enter_context(
            started(
                "worker",
                "harness.secret_tasks",
                "--executor",
                "process",
                "--server",
                running.grpc,
                cwd=tmp_path,
                PYTHONPATH=os.pathsep.join([str(TESTS / "e2e"), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
                PERDURE_EXECUTOR_PROCESS_STATE_DIR=str(tmp_path / "jobs"),
                PERDURE_HTTP_ALLOW="127.0.0.1",
                PERDURE_SECRET_API_TOKEN=value,
                PERDURE_WORKER_LOG_FORMAT="json",
                PERDURE_WORKER_LOG_LEVEL="debug",
                **environment,
            )
        )
        worker.until("connected")
        await run_all(running, receiver, value, control)
        print(f"\n{RUNS} runs in {time.monotonic() - began:.1f} s")
        evidence = Evidence()
        await tell_server_and_pages(running, evidence, control)
        await ask_for_everything(running, evidence)
        assert worker.stop() == 0
        evidence.add("worker log", "\n".join([*worker.seen, worker.rest()]).encode())
        assert running.program.stop() == 0
        evidence.add("server log", "\n".join([*running.program.seen, running.program.rest()]).encode())
    for file in tmp_path.glob("spans.jsonl*"):
        evidence.add("traces", file.read_bytes())
    for file in (tmp_path / "jobs").rglob("*"):
        if file.is_file():
            evidence.add("files", file.read_bytes())
    add_database(cluster, dsn, evidence)
    assert evidence.texts.keys() == PLACES
    # The same search finds a value that is no secret; otherwise it would show nothing.
    assert evidence.places_of(control) == PLACES
    assert evidence.places_of(value) == set()
    sizes = {where: sum(map(len, texts)) for where, texts in evidence.texts.items()}
    print(f"searched {sizes}, {time.monotonic() - began:.1f} s in all")
    # Masks show that the secret was there, and where.
    assert evidence.places_of(f"***{secret_tasks.NAME}***") >= {"worker log", "traces", "rest", "dump", "pages"}


async def run_all(running: Running, receiver: Receiver, value: str, control: str) -> None:
    """Every run ends as it should, and the value was used where it should be."""
    digest = secret_tasks.digest(value)
    async with httpx2.AsyncClient(base_url=f"{running.http}/api/v1", timeout=90) as http:
        await asked(http, "POST", "/workflows/deploy", json={"source": FLOW, "activate": True})
        for first in range(0, RUNS // 2, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, RUNS // 2))
            flows = [await start(http, "secret_flow", url=receiver.url, n=n, data=FORGED) for n in numbers]
            codes = [await start(http, "secret_workflow", url=receiver.url, n=n) for n in numbers]
            for run_id in (*flows, *codes):
                run = await ended(http, run_id)
                assert "the service refused ***API_TOKEN***" in run["error"]["message"], run
            for run_id in flows:
                history = await asked(http, "GET", f"/runs/{run_id}/history")
                assert values_at(history, "stdout") == [f"{digest}  -\n{FORGED}"]
            for run_id in codes:
                history = await asked(http, "GET", f"/runs/{run_id}/history")
                assert values_at(history, "digest") == [digest]
                assert any("is not recorded" in text for text in values_at(history, "message"))
        await ended(http, await start(http, "plain_workflow", value=control))
    assert receiver.seen == {f"Bearer {value}": RUNS // 2 * 2}


async def tell_server_and_pages(running: Running, evidence: Evidence, control: str) -> None:
    """A value that is no secret gets into the log of the server, as a key that is taken, and into the page of a link."""
    async with httpx2.AsyncClient(base_url=f"{running.http}/api/v1", timeout=90) as http:
        body = {"input": {"value": control}, "key": control}
        run_id = (await asked(http, "POST", "/workflows/asking_workflow/runs", json=body))["id"]

        async def approvals() -> Any:
            return (await asked(http, "GET", "/approvals", params={"run": run_id}))["items"]

        await until(approvals, "it asks", 60)
        link = await asked(http, "POST", f"/approvals/{run_id}/check/links", json={"who": "ada"})
        page = await http.get(link["url"], headers={"Accept": "text/html"})
        assert page.is_success and "Check it?" in page.text
        evidence.add("pages", page.content)

        await asked(http, "POST", "/events/plain.told", json={"payload": {"id": control}})

        async def refused() -> bool:
            (event,) = (await asked(http, "GET", "/events", params={"name": "plain.told"}))["items"]
            return bool(event["failed"])

        await until(refused, "its start is refused", 60)
        await asked(http, "POST", f"/runs/{run_id}/terminate")


def values_at(tree: Any, key: str) -> list[Any]:
    """What stands under a key, anywhere in it."""
    if isinstance(tree, list):
        return [found for item in tree for found in values_at(item, key)]
    if not isinstance(tree, dict):
        return []
    return ([tree[key]] if key in tree else []) + values_at(list(tree.values()), key)


async def asked(http: httpx2.AsyncClient, method: str, path: str, **options: Any) -> Any:
    answer = await http.request(method, path, **options)
    assert answer.is_success, f"{path}: {answer.text}"
    return answer.json()


async def start(http: httpx2.AsyncClient, workflow: str, **given: Any) -> str:
    run_id: str = (await asked(http, "POST", f"/workflows/{workflow}/runs", json={"input": given}))["id"]
    return run_id


async def ended(http: httpx2.AsyncClient, run_id: str) -> Any:
    await http.get(f"/runs/{run_id}/result", params={"wait": 60})
    run = await asked(http, "GET", f"/runs/{run_id}")
    assert run["status"] == "failed", run
    return run


async def ask_for_everything(running: Running, evidence: Evidence) -> None:
    """Every answer about runs, their tasks and their workflows that the description of the server lists."""
    async with httpx2.AsyncClient(base_url=running.http, timeout=90) as http:
        described = (await http.get("/api/v1/openapi.json")).json()["paths"]
        gets = [path for path, acts in described.items() if "get" in acts and path != "/api/v1/stream"]
        answers: dict[str, bytes] = {}

        async def ask(path: str) -> None:
            answers[path] = (await http.get(path)).content

        ids = await listed(http, "/api/v1/runs", "id")
        names = await listed(http, "/api/v1/workflows", "name")
        asking = [path for path in gets if "{" not in path]
        for path in gets:
            if path.startswith("/api/v1/workflows/{name}") and path.count("{") == 1:
                asking += [path.replace("{name}", name) for name in names]
            elif path.startswith("/api/v1/runs/{id}") and path.count("{") == 1:
                asking += [path.replace("{id}", run_id) for run_id in ids]
        for run_id in ids:
            for task_id in await listed(http, f"/api/v1/runs/{run_id}/tasks", "id"):
                asking += [f"/api/v1/runs/{run_id}/tasks/{task_id}/{what}" for what in ("logs", "attempts")]
        for first in range(0, len(asking), AT_ONCE):
            await asyncio.gather(*map(ask, asking[first : first + AT_ONCE]))
        for path, content in answers.items():
            evidence.add("export" if path.endswith("/export") else "rest", content)
        for path in ("/", "/errors"):
            evidence.add("pages", (await http.get(path)).content)


async def listed(http: httpx2.AsyncClient, path: str, key: str) -> list[str]:
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await asked(http, "GET", path, params={"limit": 200, **cursor})
        found += [str(item[key]) for item in page["items"]]
        if not page.get("next"):
            return found
        cursor = {"cursor": page["next"]}


def add_database(cluster: PrivateCluster, dsn: str, evidence: Evidence) -> None:
    dump = subprocess.run([cluster.binaries / "pg_dump", dsn], capture_output=True, check=True, timeout=600)
    evidence.add("dump", dump.stdout)
    cluster.stop()
    for file in cluster.directory.rglob("*"):
        if file.is_file():
            evidence.add("files", file.read_bytes())
