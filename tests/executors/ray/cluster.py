"""A Ray cluster of the tests' own: one node on the loopback interface. It takes about 10 seconds and 0.8 GB, so tests share it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.fakes.waiting import busy_thread

ROOT = Path(__file__).parents[3]
SKIP = "" if importlib.util.find_spec("ray") else "ray is not installed: `uv sync --extra ray`"
START_S = 180.0
STOP_S = 30.0
PORTS = range(21000, 29000)
"""Outside of the range from which Ray takes ports for its workers."""
WORKER_PORTS = (30000, 31999)
AGENT_PORTS = (
    "--metrics-export-port",
    "--runtime-env-agent-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
)
"""Given, because a node gives up when its agents take more than 15 seconds to find ports, as they do on a busy machine."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Otherwise Ray takes the address of another interface in place of 127.0.0.1."""


RECORDS = """
import sys, ray
from perdure.executors.ray.records import Records
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(*Records().keys(""), sep="\\n")
"""


class RayCluster:
    def __init__(self, *modules: Path) -> None:
        """`modules`: directories from which its nodes can import, beside the tests."""
        self._path = os.pathsep.join(map(str, (ROOT, *modules)))
        # A short path: Ray makes sockets below it.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self.address = ""
        self._node: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """A node that takes more than 30 seconds to start gives up, as it does now and then on a busy machine."""
        for tries_left in (2, 1, 0):
            try:
                self._start()
                return
            except AssertionError:
                if not tries_left:
                    raise
                self.stop()
                self.folder.mkdir(exist_ok=True)

    def _start(self) -> None:
        port, *agents = _free_ports(5)
        self.address = f"127.0.0.1:{port}"
        words = {
            "--port": port,
            "--node-ip-address": "127.0.0.1",
            "--num-cpus": 8,
            "--resources": '{"model_slot": 2}',
            "--object-store-memory": 100 * 1024 * 1024,
            "--temp-dir": self.folder,
            "--min-worker-port": WORKER_PORTS[0],
            "--max-worker-port": WORKER_PORTS[1],
            "--include-dashboard": "false",
            **dict(zip(AGENT_PORTS, agents, strict=True)),
        }
        command = [word for pair in words.items() for word in map(str, pair)]
        with (self.folder / "start.log").open("wb") as log:
            self._node = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "ray"),
                    "start",
                    "--head",
                    "--block",
                    "--disable-usage-stats",
                    *command,
                ],
                env={**os.environ, "PYTHONPATH": self._path, **LOOPBACK},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + START_S
        while "Ray runtime started" not in (text := (self.folder / "start.log").read_text()):
            assert self._node.poll() is None and time.monotonic() < until, text
            busy_thread(0.2)

    def processes(self) -> list[psutil.Process]:
        assert self._node is not None
        return psutil.Process(self._node.pid).children(recursive=True)

    def process(self, name: str) -> psutil.Process:
        """A process of the cluster, such as gcs_server."""
        return next(p for p in self.processes() if name in p.name())

    def records(self) -> list[str]:
        """What the executor has noted in the cluster."""
        done = subprocess.run(
            [sys.executable, "-c", RECORDS, self.address], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def stop(self) -> None:
        """Its processes, by their ids, and none of another cluster."""
        if self._node is None:
            return
        try:
            mine = [*self.processes(), psutil.Process(self._node.pid)]
        except psutil.NoSuchProcess:  # it did not start
            mine = []
        self._node.send_signal(signal.SIGTERM)
        _, left = psutil.wait_procs(mine, timeout=STOP_S)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        _, left = psutil.wait_procs(left, timeout=STOP_S)
        self._node.wait(STOP_S)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"processes of Ray are left: {left}"


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    start = PORTS.start + os.getpid() % (len(PORTS) - 100)
    for port in range(start, PORTS.stop):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no ports are free")
