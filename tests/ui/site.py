"""A whole site for the tests of the web UI: PostgreSQL, a server with keys, a worker, each a real process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = Path(sys.executable).with_name("perdure")
READY_S: Final = 60.0
TICK: Final = threading.Event()
"""Never set: what polls waits for it."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@dataclass
class Site:
    dsn: str
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    worker_module: str = "tests/ui/shop.py"
    port: int = field(default_factory=free_port)
    grpc: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    http: httpx2.Client = field(default_factory=lambda: httpx2.Client(timeout=120))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PERDURE_DSN": self.dsn, "PYTHONPATH": str(ROOT), **self.settings}

    def key(self, role: str) -> str:
        """An API key of this role, made once."""
        if role not in self.keys:
            made = subprocess.run(
                [PROGRAM, "api-key", "create", "--name", role, "--role", role, "--json"],
                env=self.environment,
                capture_output=True,
                text=True,
                check=True,
            )
            self.keys[role] = json.loads(made.stdout)["secret"]
        return self.keys[role]

    def start_server(self) -> None:
        self._start(
            "server", "server", "--http", f"127.0.0.1:{self.port}", "--grpc", f"127.0.0.1:{self.grpc}", "--drain", "2s"
        )
        self.wait_ready()

    def start_worker(self) -> None:
        self._start(
            "worker",
            "worker",
            self.worker_module,
            "--server",
            f"127.0.0.1:{self.grpc}",
            PERDURE_API_KEY=self.key("admin"),
        )

    def _start(self, name: str, *arguments: str, **more: str) -> None:
        environment = {**self.environment, **more}
        environment.pop("PYTEST_CURRENT_TEST", None)  # it is the site's, also where a test starts it again
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [PROGRAM, *arguments], env=environment, cwd=ROOT, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
        self.processes.clear()
        self.http.close()

    def wait_ready(self) -> None:
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/readyz", timeout=120).status_code == 200:
                    return
            if self.processes["server"].poll() is not None:
                break
            TICK.wait(0.1)
        raise AssertionError(f"the server is not ready:\n{(self.directory / 'server.log').read_text()[-3000:]}")

    def ask(self, method: str, path: str, body: Any = None, status: int | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.key('admin')}"}
        answer = self.http.request(method, f"{self.url}/api/v1{path}", json=body, headers=headers)
        assert answer.status_code == status if status else answer.status_code < 400, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def start(self, workflow: str, **options: Any) -> str:
        return str(self.ask("POST", f"/workflows/{workflow}/runs", options)["id"])

    def result(self, run: str) -> Any:
        return self.ask("GET", f"/runs/{run}/result?wait=60")

    def status(self, run: str) -> str:
        return str(self.ask("GET", f"/runs/{run}/status")["status"])

    def registered(self, workflow: str) -> bool:
        found = self.ask("GET", "/workflows?limit=100")["items"]
        return any(one["name"] == workflow for one in found)


@contextlib.contextmanager
def site(dsn: str, directory: Path, *, worker: bool = True, **settings: str) -> Iterator[Site]:
    one = Site(dsn, directory, settings)
    try:
        one.start_server()
        if worker:
            one.start_worker()
            end = time.monotonic() + READY_S
            while not one.registered("hello"):
                assert time.monotonic() < end, (directory / "worker.log").read_text()[-3000:]
                TICK.wait(0.2)
        yield one
    finally:
        one.stop()
