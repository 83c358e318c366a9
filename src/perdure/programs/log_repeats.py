"""Repeated log lines are shown a few times, then counted.

    first lines                         shown, up to LOG_REPEATS_SHOWN in one window
    more of them in the window          counted
    the first line after the window     shown with `repeated="7,496 times in the last 60 s"`; it opens the next window, in which all others are counted
    a window without repeats            ends it: the next line is a first line again

Two lines are the same when logger, level and text agree, the text being the template before its values are filled in. Only warnings
and errors of Perdure and of the libraries it runs are counted: what user code logs is never held back.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from typing import Any, Final, TextIO, cast

from perdure.core.limits import LOG_KINDS_MAX, LOG_REPEATS_SHOWN, LOG_WINDOW_S

OURS: Final = ("perdure", "uvicorn", "asyncio", "asyncpg", "grpc", "httpx2", "httpcore2", "fastapi", "starlette")
KEY_CHARS: Final = 200

Key = tuple[str, int, str]


class _Window:
    __slots__ = ("held", "last", "shown", "shown_max", "since")

    def __init__(self, since: float, shown_max: int) -> None:
        self.since, self.shown_max = since, shown_max
        self.shown = self.held = 0
        self.last: logging.LogRecord | None = None
        """The newest line that was held back."""


class Repeats:
    """Decides which records are written. Keeps no more than LOG_KINDS_MAX windows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[Key, _Window] = {}

    def pass_(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """The records to write now, oldest first: summaries of windows that are over, then this one, if it is shown."""
        now = self._clock()
        key = _key(record)
        own = self._windows.get(key) if key is not None else None
        out = self._over(now, but=own)
        if key is None:
            return [*out, record]
        if own is not None and now - own.since >= LOG_WINDOW_S:
            out.append(_counted(record, own.held + 1, now - own.since) if own.held else record)
            own = self._windows[key] = _Window(now, 1 if own.held else LOG_REPEATS_SHOWN)
            own.shown = 1
            return out
        if own is None:
            if len(self._windows) >= LOG_KINDS_MAX:
                out += self._end(next(iter(self._windows)), now)
            own = self._windows[key] = _Window(now, LOG_REPEATS_SHOWN)
        if own.shown < own.shown_max:
            own.shown += 1
            return [*out, record]
        own.held += 1
        own.last = record
        return out

    def flush(self) -> list[logging.LogRecord]:
        """What was held back, when no more lines come."""
        now = self._clock()
        return [line for key in list(self._windows) for line in self._end(key, now)]

    def _over(self, now: float, but: _Window | None) -> list[logging.LogRecord]:
        ended = [key for key, w in self._windows.items() if now - w.since >= LOG_WINDOW_S and w is not but]
        return [line for key in ended for line in self._end(key, now)]

    def _end(self, key: Key, now: float) -> list[logging.LogRecord]:
        window = self._windows.pop(key)
        return [_counted(window.last, window.held, now - window.since)] if window.last is not None else []


class RepeatsHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream, repeated lines counted."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._repeats = Repeats(clock)

    def emit(self, record: logging.LogRecord) -> None:
        for line in self._repeats.pass_(record):
            super().emit(line)

    def close(self) -> None:
        try:
            for line in self._repeats.flush():
                super().emit(line)
        finally:
            super().close()


def _key(record: logging.LogRecord) -> Key | None:
    if record.levelno < logging.WARNING or record.name.partition(".")[0] not in OURS:
        return None
    said: Any = record.msg
    text = str(cast(dict[str, Any], said).get("event", "")) if isinstance(said, dict) else str(said)
    return (record.name, record.levelno, text.partition("\n")[0][:KEY_CHARS])


def _counted(record: logging.LogRecord, times: int, within_s: float) -> logging.LogRecord:
    counted = copy.copy(record)
    text = f"{times:,} times in the last {within_s:.0f} s"
    if isinstance(record.msg, dict):
        counted.msg = {**record.msg, "repeated": text}
    else:
        counted.repeated = text
    return counted
