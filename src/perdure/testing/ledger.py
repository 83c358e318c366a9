"""A ledger of what tasks really did, for tests that kill things: `perdure verify --ledger` compares it with the database.

    with Ledger("ledger.jsonl").execution() as line:
        charge(card)
        line.effect()

Each line is one `write` on a file opened for appending, so many processes share one file and a kill leaves whole lines; each is
fsynced before the call returns. Lines of the running attempt are found by `perdure.attempt()`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import msgspec

from perdure.core.invariants import LedgerLine, Phase
from perdure.sdk.worker.attempts import Attempt, attempt

BOOT = os.urandom(8).hex()
"""One process, from its start to its end."""


class _AppendOnly:
    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def _append(self, line: bytes) -> None:
        written = os.write(self._file, line + b"\n")
        assert written == len(line) + 1, "a ledger line was torn: is the disk full?"
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class Execution:
    """The attempt that is writing."""

    def __init__(self, ledger: Ledger, me: Attempt) -> None:
        self._ledger, self._me = ledger, me

    def effect(self) -> None:
        """The side effect has happened."""
        self._ledger.write(self._me, "effect")


class Ledger(_AppendOnly):
    """What tasks append to. Open it once per process."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._worker = f"{socket.gethostname()}:{os.getpid()}"

    def write(
        self, me: Attempt, phase: Phase, after: Iterable[str] = (), *, failed: bool = False, retry_us: int = 0
    ) -> None:
        line = LedgerLine(
            run=me.run_id,
            task=me.task_id,
            name=me.task,
            attempt=me.number,
            epoch=me.epoch,
            worker=self._worker,
            phase=phase,
            boot=BOOT,
            mono_us=time.monotonic_ns() // 1000,
            after=tuple(after),
            failed=failed,
            retry_us=retry_us,
        )
        self._append(msgspec.json.encode(line))

    def begin(self, after: Iterable[str] = ()) -> None:
        self.write(attempt(), "begin", after)

    def effect(self) -> None:
        self.write(attempt(), "effect")

    def end(self) -> None:
        self.write(attempt(), "end")

    @contextmanager
    def execution(self, after: Iterable[str] = ()) -> Generator[Execution]:
        """`begin` now and `end` however the block is left; a killed process leaves no `end`.

        `after` names the tasks whose results this one was given, by `perdure.attempt().task_id`.
        """
        me = attempt()
        self.write(me, "begin", after)
        failed, retry_us = False, 0
        try:
            yield Execution(self, me)
        except Exception as e:
            failed = not isinstance(e, TimeoutError)  # that may be the engine's doing
            asked = getattr(e, "retry_after", None)
            retry_us = int(asked * 1e6) if isinstance(asked, int | float) else 0
            raise
        finally:
            self.write(me, "end", failed=failed, retry_us=retry_us)


class Signals(_AppendOnly):
    """Signals that were acknowledged: append after `send()` has returned. Signals of different `sender`s have no order."""

    def acknowledged(self, run_id: str, name: str, value: object, sender: str = "") -> None:
        self._append(msgspec.json.encode({"run": run_id, "name": name, "value": value, "sender": sender}))


class Starts(_AppendOnly):
    """Run ids whose start was acknowledged: append after `start()` has returned."""

    def acknowledged(self, run_id: str) -> None:
        self._append(msgspec.json.encode({"run": run_id}))
