"""A private PostgreSQL that needs no administration.

    directory/
      data/        what initdb made; appears by one rename, so it is there whole or not at all
      password     0600; the server asks for it even on loopback, where any local user could otherwise connect
      port         the last port, kept while it stays free so that a DSN outlives a restart
      lock         held while a process starts or stops the server: ten starters end with one server
      server       held by the server's own processes: never two on the same data
      users        held shared by every process that uses the server: the last to leave stops it
      watch        held by a process that stops the server when its users were killed instead (cluster_watch.py)
      server.log

Laws
 - The server is detached and has its own session: Ctrl-C does not reach it, and kill -9 of the process that
   started it leaves it running for UNUSED_S_MAX. A start() on that directory until then finds it.
 - postmaster.pid is believed only if that process is alive and works on this very data directory.
 - TCP on 127.0.0.1 only. No unix socket: its path may not exceed some 100 bytes, and project directories do.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

from perdure.core.errors import Unavailable
from perdure.localpg.binaries import find_binaries
from perdure.localpg.postmaster import (
    Postmaster,
    await_ready,
    children_of,
    forget_stranger,
    free_port,
    kill_orphans,
    launch,
    port_is_free,
    reap,
    wait_gone,
)
from perdure.localpg.sharing import Sharing
from perdure.localpg.unprivileged import Account, reachable_binaries, reachable_directory

__all__ = ["PrivateCluster", "default_directory", "find_binaries"]

START_S_MAX: Final = 300.0
"""Long, because a crashed server first reads back its log. A server that dies on the way is noticed at once."""
STOP_S_MAX: Final = 120.0
UNUSED_S_MAX: Final = 10.0
"""A server whose users were all killed runs on this long: who starts again at once finds it warm."""
BINDS_MAX: Final = 5
USER: Final = "perdure"
FILE_COPY_SINCE: Final = 15
"""The major version since which a copy of a database has a choice of strategies."""
SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "wal_level": "replica",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
    "jit": "off",
}
StopMode = Literal["smart", "fast", "immediate"]
STOP_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


def default_directory() -> Path:
    """`$PERDURE_HOME/pg`, or `.perdure/pg` where the person stands."""
    return Path(os.environ.get("PERDURE_HOME") or ".perdure").expanduser().absolute() / "pg"


class PrivateCluster:
    """One server on one directory. `settings` override `SETTINGS` and apply when this object is the one to start it.

    As a context manager it starts the server, and stops it at the end unless another process is using it too.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        binaries: str | Path | None = None,
    ) -> None:
        self.requested = Path(directory).expanduser().resolve()
        self.settings = {**SETTINGS, **(settings or {})}
        self._fixed_port = port
        self._explicit_binaries = binaries
        self._account = Account.for_server(self.requested)

    @cached_property
    def directory(self) -> Path:
        """Where it really is: elsewhere only for root, when the server's user cannot reach what was asked for."""
        return reachable_directory(self.requested, self._account)

    @cached_property
    def _sharing(self) -> Sharing:
        return Sharing(self.directory, self._account)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @cached_property
    def binaries(self) -> Path:
        made_by = self.data / "PG_VERSION"
        major = int(made_by.read_text()) if made_by.exists() else None
        return reachable_binaries(find_binaries(self._explicit_binaries, major=major), self._account)

    @property
    def pid(self) -> int | None:
        running = Postmaster.on(self.data)
        return running.pid if running else None

    @property
    def is_running(self) -> bool:
        return Postmaster.on(self.data) is not None

    def dsn(self, database: str = USER) -> str:
        running = Postmaster.on(self.data)
        if running is None:
            raise Unavailable(f"the private PostgreSQL in {self.directory} is not running. Call start() first.")
        return f"postgresql://{USER}:{self._password()}@127.0.0.1:{running.port}/{quote(database, safe='')}"

    def start(self) -> str:
        """Start the server, or find it running. Returns the DSN of the database `perdure`."""
        with self._sharing.alone():
            running = Postmaster.on(self.data)
            if running and running.status == "stopping":
                wait_gone([running.pid], STOP_S_MAX)
                running = None
            if running is None:
                if not self.data.exists():
                    self._initialise()
                self._start_on_some_port()
            elif not await_ready(running.pid, self.data, START_S_MAX):
                raise self._failed_to_start()
            self._sharing.join()
            self._sharing.watch(UNUSED_S_MAX)
        return self.dsn()

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, also while it is used. `fast` ends open transactions and leaves nothing to recover."""
        with self._sharing.alone():
            self._sharing.leave()
            self._stop(mode)

    def leave(self) -> None:
        """Stop the server unless another process is using it."""
        with self._sharing.alone():
            self._sharing.leave()
            if not self._sharing.others():
                self._stop("fast")

    @staticmethod
    def stop_unused(directory: Path) -> None:
        """Stop the server of a directory that has no users. The caller holds its lock (`Sharing.alone`)."""
        running = Postmaster.on(directory / "data")
        if running is not None:
            os.kill(running.pid, signal.SIGINT)
            wait_gone([running.pid], STOP_S_MAX)

    def kill(self) -> None:
        """Crash it: SIGKILL the server and everything it started. For tests of what survives."""
        pid = self.pid
        family = [pid, *children_of(pid)] if pid is not None else []
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_gone([pid], STOP_S_MAX)
        kill_orphans(self.data)
        # One that is dying already has no working directory to be found by, but is not gone yet.
        wait_gone(family, STOP_S_MAX)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create an empty database, or a copy of `template`. Returns its DSN."""
        how = ["--template", template] if template else []
        if template and int((self.data / "PG_VERSION").read_text()) >= FILE_COPY_SINCE:
            how.append("--strategy=file_copy")  # half of the time, for a template that few write to
        self._client("createdb", *how, "--", name)
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and end its connections."""
        self._client("dropdb", "--force", "--if-exists", "--", name)

    def _client(self, program: str, *arguments: str) -> None:
        running = Postmaster.on(self.data)
        if running is None:
            raise Unavailable(f"the private PostgreSQL in {self.directory} is not running. Call start() first.")
        options = self._account.popen_options()
        # In the environment, because every local user can read the arguments of a program.
        options["env"] |= {"PGPASSWORD": self._password()}
        where = ["-h", "127.0.0.1", "-p", str(running.port), "-U", USER, "--maintenance-db", "postgres"]
        self._run(program, *where, *arguments, options=options)

    def _initialise(self) -> None:
        """Make the data directory beside its place and rename it in: a crash half way leaves only what is made anew."""
        draft = self.directory / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        password = self.directory / "password"
        self._write_private(password, f"{secrets.token_hex(16)}\n")
        options = self._account.popen_options()
        where: list[str | Path] = ["-D", draft, "-U", USER, "--pwfile", password]
        how = ["--auth=scram-sha-256", "--locale=C", "--encoding=UTF8"]
        if self.settings["fsync"] == "off":
            how.append("--no-sync")
        self._run("initdb", *where, *how, options=options)
        # A single-user server needs neither port nor client program, and no client can see an incomplete database.
        self._run("postgres", "--single", "-D", draft, "postgres", options=options, stdin=f"create database {USER};\n")
        with (draft / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude_if_exists 'perdure.conf'\n")
        draft.rename(self.data)

    def _start_on_some_port(self) -> None:
        for port in self._ports():
            seen = self.log.stat().st_size if self.log.exists() else 0
            pid = self._launch(port)
            if await_ready(pid, self.data, START_S_MAX):
                self._write_private(self.directory / "port", f"{port}\n")
                return
            reap(pid)
            if b"Address already in use" not in self.log.read_bytes()[seen:]:
                break
        raise self._failed_to_start()

    def _launch(self, port: int) -> int:
        quoted = {name: value.replace("'", "''") for name, value in self.settings.items()}
        lines = [f"{name} = '{value}'" for name, value in quoted.items()]
        kill_orphans(self.data)
        with self._sharing.held_for_server() as held:
            # Only now is it certain that no server has this data, and the files in it may be touched.
            forget_stranger(self.data)
            self._write_private(self.data / "perdure.conf", "\n".join(["# Written anew at every start.", *lines, ""]))
            return launch(self.binaries, self.data, port, self.log, self._account, held=held)

    def _ports(self) -> Iterator[int]:
        """The port asked for, or the last one, then others: another program may take a port between look and bind."""
        if self._fixed_port is not None:
            yield self._fixed_port
            return
        remembered = self.directory / "port"
        if remembered.exists() and port_is_free(last := int(remembered.read_text())):
            yield last
        for _ in range(BINDS_MAX):
            yield free_port()

    def _stop(self, mode: StopMode) -> None:
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, STOP_SIGNALS[mode])
        wait_gone([pid], STOP_S_MAX)
        reap(pid)

    def _failed_to_start(self) -> Unavailable:
        tail = self.log.read_text(errors="replace").splitlines()[-12:] if self.log.exists() else []
        return Unavailable("\n  ".join([f"PostgreSQL did not start. The last lines of {self.log}:", *tail]))

    def _password(self) -> str:
        return (self.directory / "password").read_text().strip()

    def _write_private(self, path: Path, text: str) -> None:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        self._account.own(path)

    def _run(self, program: str, *arguments: str | Path, options: dict[str, Any], stdin: str = "") -> None:
        answer = subprocess.run(
            [self.binaries / program, *arguments], input=stdin, capture_output=True, text=True, check=False, **options
        )
        # The single-user server exits with 0 also when a statement failed.
        if answer.returncode != 0 or "ERROR:" in answer.stderr:
            raise Unavailable(f"{program} failed: {(answer.stderr or answer.stdout).strip()}")
