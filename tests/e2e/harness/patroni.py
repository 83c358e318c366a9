"""Debian's Patroni, etcd and PostgreSQL as one cluster on loopback ports: nodes that are killed, halted and switched over.

A node is two families of processes, Patroni and the PostgreSQL that it starts; they are hit together, as the machine they would be on.
All of them run as the unprivileged user and end with the `with` block.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from perdure.localpg.binaries import find_binaries
from perdure.localpg.postmaster import Postmaster, children_of, free_port
from perdure.localpg.unprivileged import Account
from tests.fakes.waiting import until_sync

SCOPE = "perdure"
UP_S = 90.0
WANTED = ("patroni", "patronictl", "etcd")
missing = [program for program in WANTED if shutil.which(program) is None]


@dataclass(frozen=True)
class Timing:
    """Patroni asks for loop_wait + 2 * retry_timeout <= ttl."""

    ttl: int = 8
    loop_wait: int = 2
    retry_timeout: int = 3


@dataclass
class Node:
    name: str
    directory: Path
    port: int
    rest_port: int
    process: subprocess.Popen[bytes] | None = None
    halted: tuple[int, ...] = ()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    @property
    def family(self) -> list[int]:
        """Patroni and all of PostgreSQL, the one that restarts the other first."""
        found = [self.process.pid] if self.process is not None and self.process.poll() is None else []
        running = Postmaster.on(self.data)
        return [*found, *([running.pid, *children_of(running.pid)] if running is not None else [])]

    def ask(self, path: str) -> int:
        """The status of Patroni's own health check, 0 when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest_port}/{path}", timeout=1) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return 0


class Patroni:
    def __init__(
        self, directory: Path, nodes: int, timing: Timing, *, synchronous: bool = True, callback: str = ""
    ) -> None:
        """`callback` is a program that Patroni starts with `ACTION ROLE SCOPE` when the role of a node changes."""
        self._directory, self.timing = directory, timing
        self._synchronous, self._callback = synchronous, callback
        self._account = Account.for_server(directory / "no-such-directory")
        self._etcd: subprocess.Popen[bytes] | None = None
        self._etcd_ports = (free_port(), free_port())
        self.nodes = [Node(f"node{n}", directory / f"node{n}", free_port(), free_port()) for n in range(nodes)]

    def dsn(self, user: str = "postgres", **parameters: str) -> str:
        """Every node, of which the one that takes writes is used."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        query = "&".join(f"{k}={v}" for k, v in parameters.items())
        return f"postgresql://{user}:secret@{hosts}/postgres{'?' if query else ''}{query}"

    def dsn_of(self, node: Node) -> str:
        return f"postgresql://postgres:secret@127.0.0.1:{node.port}/postgres"

    # -- the life of it ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start_etcd()
            first, *others = self.nodes
            self.start(first)
            until_sync(lambda: first.ask("primary") == 200, f"{first.name} leads", UP_S)
            for node in others:
                self.start(node)
            until_sync(self.is_whole, "all nodes follow", UP_S)
        except BaseException:
            print(*(f"{node.name}: {node.log[-3000:]}" for node in self.nodes if node.directory.exists()), sep="\n")
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        for node in self.nodes:
            self.kill(node)
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait(30)

    def _spawn(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **self._account.popen_options()
            )

    def _own(self, directory: Path) -> Path:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._account.own(directory)
        return directory

    def _start_etcd(self) -> None:
        clients, peers = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        data = self._own(self._directory / "etcd")
        command = [
            "etcd",
            "--enable-v2",
            "--name",
            "one",
            "--data-dir",
            str(data / "data"),
            "--initial-cluster",
            f"one={peers}",
        ]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        self._etcd = self._spawn(command, self._directory / "etcd.log")

        def answers() -> bool:
            assert self._etcd is not None and self._etcd.poll() is None, (self._directory / "etcd.log").read_text()
            try:
                return bool(urllib.request.urlopen(f"{clients}/health", timeout=1).status == 200)
            except OSError:
                return False

        until_sync(answers, "etcd answers", UP_S)

    def start(self, node: Node) -> None:
        self._own(node.directory)
        (node.directory / "patroni.yml").write_text(yaml.safe_dump(self._configuration(node)))
        node.process = self._spawn(["patroni", str(node.directory / "patroni.yml")], node.directory / "log")

    def _configuration(self, node: Node) -> dict[str, Any]:
        """The part that matters to a user is in docs/how-to/run-with-patroni.md."""
        hba = ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        callbacks = {"on_start": self._callback, "on_role_change": self._callback} if self._callback else {}
        return {
            "scope": SCOPE,
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.rest_port}", "connect_address": f"127.0.0.1:{node.rest_port}"},
            "etcd": {"host": f"127.0.0.1:{self._etcd_ports[0]}"},
            "bootstrap": {
                "dcs": {
                    **vars(self.timing),
                    "synchronous_mode": self._synchronous,
                    "synchronous_mode_strict": self._synchronous,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"max_connections": 150, "shared_buffers": "64MB", "wal_keep_size": "256MB"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.data),
                "bin_dir": str(find_binaries()),
                "pgpass": str(node.directory / "pgpass"),
                "pg_hba": hba,
                "authentication": {
                    "superuser": {"username": "postgres", "password": "secret"},
                    "replication": {"username": "replicator", "password": "secret"},
                },
                "parameters": {"unix_socket_directories": str(node.directory)},
                "callbacks": callbacks,
            },
            "tags": {"nofailover": False},
        }

    # -- what it is now ----------------------------------------------------------------------------------------------------

    def members(self) -> dict[str, dict[str, Any]]:
        """What patronictl prints, by node; empty while it cannot."""
        done = self._control("list", "-f", "json")
        return {m["Member"]: m for m in json.loads(done.stdout)} if done.returncode == 0 and done.stdout else {}

    def _control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # The file of a node that was killed serves as well: it names etcd.
        configuration = str(self.nodes[0].directory / "patroni.yml")
        return subprocess.run(
            ["patronictl", "-c", configuration, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **self._account.popen_options(),
        )

    def is_whole(self) -> bool:
        """One leader, and every other node follows; with synchronous replication one at least does so synchronously."""
        if sum(node.ask("primary") == 200 for node in self.nodes) != 1:
            return False
        if self._synchronous and len(self.nodes) > 1 and not any(node.ask("sync") == 200 for node in self.nodes):
            return False
        return sum(node.ask("replica") == 200 for node in self.nodes) == len(self.nodes) - 1

    @property
    def leader(self) -> Node:
        return until_sync(lambda: next((n for n in self.nodes if n.ask("primary") == 200), None), "a node leads", UP_S)

    @property
    def synchronous_standby(self) -> Node:
        return until_sync(lambda: next((n for n in self.nodes if n.ask("sync") == 200), None), "one is in step", UP_S)

    # -- faults ------------------------------------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        """SIGKILL Patroni and all of PostgreSQL, Patroni first, so that it starts nothing again."""
        family = [*node.halted, *node.family]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if node.process is not None:
            node.process.wait(60)
        node.halted = ()
        until_sync(lambda: not any(_lives(pid) for pid in family), f"{node.name} is gone", 60)

    def halt(self, node: Node) -> None:
        """SIGSTOP: it holds its connections and answers nothing, as a machine whose hypervisor has paused it."""
        node.halted = tuple(node.family)
        for pid in node.halted:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self, node: Node) -> None:
        for pid in reversed(node.halted):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        node.halted = ()

    def switch_over(self) -> None:
        """A planned change of the leader to the synchronous standby."""
        leader, candidate = self.leader.name, self.synchronous_standby.name
        done = self._control("switchover", SCOPE, "--master", leader, "--candidate", candidate, "--force")
        assert done.returncode == 0 and "Successfully" in done.stdout, f"{done.stdout}{done.stderr}"


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
