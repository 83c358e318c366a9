"""Reads what perdure.testing.ledger wrote: executions and acknowledged starts, line by line, in bounded memory."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.invariants import AcknowledgedSignal, LedgerLine

SORT_LINES = 100_000
"""Lines sorted in memory at once; more go through temporary files."""
_decode = msgspec.json.Decoder(LedgerLine).decode
_signal = msgspec.json.Decoder(AcknowledgedSignal).decode
_start = msgspec.json.Decoder(dict[str, str]).decode


def read_starts(path: str | Path) -> Iterator[str]:
    for number, line in _lines(path):
        try:
            yield _start(line)["run"]
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError) as e:
            raise InvalidInput(f'{path}, line {number}: expected {{"run": "<id>"}}: {e}') from None


def read_signals(path: str | Path) -> Iterator[AcknowledgedSignal]:
    for number, line in _lines(path):
        try:
            yield _signal(line)
        except (msgspec.DecodeError, msgspec.ValidationError) as e:
            expected = '{"run": "<id>", "name": "<signal>", "value": <JSON>, "sender": "<who>"}'
            raise InvalidInput(f"{path}, line {number}: expected {expected}: {e}") from None


def read_ledger(path: str | Path) -> Iterator[LedgerLine]:
    for number, line in _lines(path):
        try:
            yield _decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError) as e:
            raise InvalidInput(f"{path}, line {number}: not a ledger line: {e}") from None


def _lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            # A line without a newline was never finished, so its write was never acknowledged.
            if line.endswith(b"\n"):
                yield number, line


@contextmanager
def sorted_ledger(path: str | Path) -> Generator[Iterator[LedgerLine]]:
    """The ledger by run and time, in bounded memory."""
    with ExitStack() as files:
        chunks = [_spill(chunk, files) for chunk in _chunks(read_ledger(path))]
        yield heapq.merge(*chunks, key=_order)


def _order(line: LedgerLine) -> tuple[str, int]:
    return line.run, line.mono_us


def _chunks(lines: Iterator[LedgerLine]) -> Iterator[list[LedgerLine]]:
    chunk: list[LedgerLine] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) >= SORT_LINES:
            yield sorted(chunk, key=_order)
            chunk = []
    if chunk:
        yield sorted(chunk, key=_order)


def _spill(chunk: list[LedgerLine], files: ExitStack) -> Iterator[LedgerLine]:
    if len(chunk) < SORT_LINES:  # The last one: it may as well stay where it is.
        return iter(chunk)
    file: IO[bytes] = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    for line in chunk:
        file.write(msgspec.json.encode(line) + b"\n")
    file.seek(0)
    return (_decode(line) for line in file)
