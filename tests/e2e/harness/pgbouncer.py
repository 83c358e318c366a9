"""Debian's PgBouncer in front of a private PostgreSQL."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit, urlunsplit

from perdure.localpg.postmaster import free_port
from perdure.localpg.unprivileged import Account
from tests.fakes.waiting import until_sync

PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
START_S = 30.0


class PgBouncer:
    def __init__(self, directory: Path, server: str, mode: str, *, pool_size: int = 4, **options: str) -> None:
        """`server` is the DSN of the PostgreSQL behind it; a small `pool_size` makes clients share; `directory` can be entered by the unprivileged user."""
        self._directory, self._server, self.mode = directory, urlsplit(server), mode
        self._options = {"default_pool_size": str(pool_size), **options}
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, server: str, **parameters: str) -> str:
        """The same database through the pooler."""
        parts = urlsplit(server)
        user, _, _ = parts.netloc.rpartition("@")
        query = "&".join(f"{k}={v}" for k, v in parameters.items())
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self.port}", query=query))

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def __enter__(self) -> Self:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self._directory / "users"),
            "pool_mode": self.mode,
            **self._options,
        }
        lines = "\n".join(f"{k} = {v}" for k, v in settings.items())
        behind = f"* = host={self._server.hostname} port={self._server.port}"
        (self._directory / "ini").write_text(f"[databases]\n{behind}\n[pgbouncer]\n{lines}\n")
        (self._directory / "users").write_text(f'"{self._server.username}" "{unquote(self._server.password or "")}"\n')
        self.start()
        return self

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, str(self._directory / "ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **Account.for_server(self._directory / "no-such-directory").popen_options(),
            )
        until_sync(self._answers, "pgbouncer answers", START_S)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        """Its clients lose their connections, and its servers theirs."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(120)
