"""Engine processes that are started, killed, paused and always reaped; and the verifier as a program."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg

from perdure.wire.codec import decode_events
from tests.fakes.waiting import until

SCRIPT = Path(__file__).with_name("engine_process.py")
REAP_S = 15.0


@dataclass
class EngineProcess:
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def send(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait(REAP_S)

    def stop(self) -> int:
        """SIGTERM: it hands back its runs and leaves."""
        self.send(signal.SIGTERM)
        return self.process.wait(REAP_S)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(x) for x in self.out.read_bytes().split(b"\n")[:-1]]

    @property
    def counters(self) -> dict[str, Any]:
        return next((x for x in reversed(self.lines) if "pid" in x), {})


@dataclass
class Fleet:
    """Leaving the `with` kills whatever still lives."""

    directory: Path
    dsn: str
    engines: list[EngineProcess] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger.jsonl"

    @property
    def starts(self) -> Path:
        return self.directory / "starts.jsonl"

    @property
    def signals(self) -> Path:
        """Written by some loads only."""
        return self.directory / "signals.jsonl"

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ledger.touch()
        self.starts.touch()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for e in self.engines:
            e.send(signal.SIGCONT)
            e.send(signal.SIGKILL)
        for e in self.engines:
            e.process.wait(REAP_S)

    def launch(self, **options: object) -> EngineProcess:
        number = len(self.engines)
        out, err = self.directory / f"engine-{number}.out", self.directory / f"engine-{number}.err"
        given = {"dsn": self.dsn, "starts": str(self.starts), "seed": number, **options}
        arguments = [x for name, value in given.items() for x in (f"--{name}", str(value))]
        with out.open("wb") as o, err.open("wb") as e:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", str(SCRIPT), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=o,
                stderr=e,
                env={**os.environ, "PERDURE_TEST_LEDGER": str(self.ledger)},
            )
        self.engines.append(EngineProcess(process, out, err))
        return self.engines[-1]

    @property
    def acknowledged(self) -> int:
        return self.starts.read_bytes().count(b"\n")

    def verify(self, *, at_rest: bool = True) -> dict[int, dict[str, Any]]:
        """The program itself, as a person would run it. Answers by invariant number."""
        files = ["--ledger", str(self.ledger), "--starts", str(self.starts), "--json"]
        files += ["--signals", str(self.signals)] if self.signals.exists() else []
        command = [
            sys.executable,
            "-c",
            "from perdure.cli.main import main; main()",
            "verify",
            "--dsn",
            self.dsn,
            *files,
        ]
        done = subprocess.run(
            [*command, *(["--at-rest"] if at_rest else [])], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode in (0, 1) and done.stdout, done.stderr
        tallies = {t["number"]: t for t in json.loads(done.stdout)}
        assert (done.returncode == 1) == any(t["violations"] for t in tallies.values())
        return tallies

    def errors(self) -> str:
        """What engines complained about, for the message of a failed test."""
        return "\n".join(f"{e.err.name}:\n{e.err.read_text()[-3000:]}" for e in self.engines)


def violated(tallies: dict[int, dict[str, Any]]) -> dict[int, Any]:
    return {n: t["examples"] for n, t in tallies.items() if t["violations"]}


async def count(dsn: str, query: str) -> int:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


async def at_rest(dsn: str, seconds: float) -> None:
    """Wait until no run is active and no message is on its way; if that never comes, the verifier says what is wrong."""
    busy = "select (select count(*) from perdure.run_queue) + (select count(*) from perdure.inbox)"

    async def is_at_rest() -> bool:
        try:
            return not await count(dsn, busy)
        except (OSError, asyncpg.PostgresError):
            return False

    with contextlib.suppress(AssertionError):
        await until(is_at_rest, within_s=seconds)


async def describe_active(dsn: str) -> str:
    """What runs that should have ended look like, for the message of a failed test."""
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        lines = []
        for r in await connection.fetch("select * from perdure.run_queue order by run_id limit 10"):
            rows = await connection.fetch(
                "select body from perdure.history where run_id = $1 order by seq", r["run_id"]
            )
            events = [type(e).__name__ for row in rows for e in decode_events(row["body"])]
            tasks = await connection.fetch(
                "select seq, status, owner, attempt, lost, run_at from perdure.task_queue where run_id = $1",
                r["run_id"],
            )
            lines.append(f"{dict(r)}\n  {' '.join(events)}\n  {[dict(t) for t in tasks]}")
        sessions = await connection.fetch("select id, expires_at - now() as left from perdure.engine_session")
        return "\n".join([*lines, f"sessions {[dict(s) for s in sessions]}"])
    finally:
        await connection.close()
