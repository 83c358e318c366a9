"""What a task prints or logs while it runs, line by line, attributed to its attempt.

Theory. `sys.stdout` and `sys.stderr` are stood in for by proxies, and `logging.Logger` hands every record to us after its own
handlers had it. Both look at a context variable: with no attempt behind the call they pass on what they got and that is all.
Lines of an attempt collect in its `OutputBuffer`, which the first of them makes; a `Sink` sends what all attempts of a worker wrote
a few times a second.

Not a handler on the root logger: `logging.basicConfig()` would find the root configured and do nothing, the last-resort
handler would fall silent, `dictConfig` would remove it, and loggers that do not propagate would not be seen.

Laws:

1. Everything still reaches the real streams and the user's log handlers, unless the worker is configured otherwise.
2. A record that a handler writes to a captured stream is one line, not two.
3. Values of secrets that tasks have read are masked on every way: in what is sent, in the real streams and in records for log handlers.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, cast

from perdure.core.work import LogChunk, Upstream
from perdure.sdk.captured_output import WORKFLOW_SEQ, OutputBuffer
from perdure.sdk.secrets.known import redacted
from perdure.sdk.worker.attempts import Attempt, current_slot
from perdure.sdk.worker.log_redaction import redact_record
from perdure.sdk.workflow.live_run import current as current_run

FLUSH_S = 0.2
"""Lines wait this long at most before they are sent."""
FLUSH_LINES = 64
"""This many waiting lines are sent at once."""
CHUNK_LINES_MAX = 1_000
"""Lines in one chunk."""
LEVEL_MIN = logging.INFO
"""Records below this level are not captured."""

OutputMode = Literal["tee", "capture", "ignore"]
"""Send what tasks print and log to the engine and print it too, only send it, or leave it alone."""


class Outbox:
    """The sink of a worker: sends what its attempts wrote, in batches, from the worker's loop."""

    def __init__(self, upstream: Upstream, *, tee: bool) -> None:
        self.now_us, self._logged, self.tee = upstream.clock_us, upstream.logged, tee
        self._waiting: deque[OutputBuffer] = deque()
        self._lines = 0
        self._armed = self._hurried = False
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def grown(self, output: OutputBuffer, new: bool) -> None:
        if new:
            self._waiting.append(output)
        self._lines += 1
        if not self._armed:
            self._armed = True
            self._call(self._arm)
        elif self._lines >= FLUSH_LINES and not self._hurried:
            self._hurried = True
            self._call(self.flush)

    def _call(self, what: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(what, context=self._context)
        except RuntimeError:  # the loop is closed: lines cannot be sent any more
            pass

    def _arm(self) -> None:
        self._loop.call_later(FLUSH_S, self._tick, context=self._context)

    def _tick(self) -> None:
        self._armed = False
        self.flush()

    def flush(self) -> None:
        """On the loop: send everything that waits."""
        self._hurried, self._lines = False, 0
        chunks: list[LogChunk] = []
        for _ in range(len(self._waiting)):
            chunks.extend(chunks_of(self._waiting.popleft()))
        if chunks:
            self._logged(chunks)


def chunks_of(output: OutputBuffer) -> list[LogChunk]:
    run_id, seq, attempt, ns = output.owner
    lines = output.take()
    chunks: list[LogChunk] = []
    step = CHUNK_LINES_MAX if seq != WORKFLOW_SEQ else max(len(lines), 1)  # its chunks have no numbers to spare
    for at in range(0, len(lines), step):
        chunks.append(LogChunk(run_id, seq, attempt, output.n, lines[at : at + step], ns))
        output.n += 1
    return chunks


def output_of(attempt: Attempt) -> OutputBuffer | None:
    output = attempt._output
    if output is None:
        sink = attempt._host.sink
        if sink is None:
            return None
        a = attempt._assignment
        output = attempt._output = OutputBuffer(sink, (a.run_id, a.seq, a.attempt, a.ns), _release)
    return output


def _current() -> OutputBuffer | None:
    """The output of the task or workflow code behind this call; None for other code and during a replay."""
    run = current_run.get(None)
    if run is not None:
        return run.captured_output()
    slot = current_slot.get(None)
    return None if slot is None or slot.attempt is None else output_of(slot.attempt)


class Tee:
    """Stands in for a standard stream."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    def write(self, text: str) -> int:
        output = _current() if _installed and not _here.logging else None
        if output is None:
            shown = redacted(text)
        else:
            output.write(self._name, text)
            if not output._sink.tee:
                return len(text)
            shown = output.teed(self._name, text)
        written: int = self._inner.write(shown) if shown or not text else 0
        return written if shown is text else len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Any:
        return iter(self._inner)

    def __repr__(self) -> str:
        return f"<{self._name} of tasks, over {self._inner!r}>"


def _release(stream: str, text: str) -> None:
    """The end of what an attempt printed, which was held back because a secret could have begun in it."""
    real = getattr(sys, stream)
    (real._inner if type(real) is Tee else real).write(text)


class _OutputThread(threading.local):
    logging = False
    """A record is being written by its handlers: it is captured as what it is, not as what they write."""


_here = _OutputThread()
_installed = 0
_lock = threading.Lock()
_STREAMS = ("stdout", "stderr")


def install() -> None:
    """Begin to capture. Every `install` needs its `remove`; what is captured ends with the last one."""
    global _installed
    with _lock:
        _installed += 1
        if _installed == 1:
            _wrap_logging()
    keep()


def remove() -> None:
    global _installed
    with _lock:
        _installed -= 1
        if _installed == 0:
            _unwrap_logging()
            for name in _STREAMS:
                stream = getattr(sys, name)
                # Another stream may have been put over ours; a proxy that comes back passes on everything.
                if type(stream) is Tee:
                    setattr(sys, name, stream._inner)


def keep() -> None:
    """Replace the streams again where they were replaced, as test runners do between a fixture and its test."""
    if type(sys.stdout) is Tee and type(sys.stderr) is Tee:
        return
    with _lock:
        for name in _STREAMS:
            stream = getattr(sys, name)
            if stream is not None and type(stream) is not Tee:
                setattr(sys, name, Tee(stream, name))


_is_enabled: Any = logging.Logger.isEnabledFor
_call_handlers: Any = logging.Logger.callHandlers
_formatter = logging.Formatter("%(message)s")


def _wrap_logging() -> None:
    global _is_enabled, _call_handlers
    _is_enabled, _call_handlers = logging.Logger.isEnabledFor, logging.Logger.callHandlers
    logger = cast("Any", logging.Logger)
    logger.isEnabledFor, logger.callHandlers = _enabled_here, _call_handlers_and_keep


def _unwrap_logging() -> None:
    logger = cast("Any", logging.Logger)
    if logger.isEnabledFor is _enabled_here:
        logger.isEnabledFor = _is_enabled
    if logger.callHandlers is _call_handlers_and_keep:
        logger.callHandlers = _call_handlers


def _enabled_here(self: logging.Logger, level: int) -> bool:
    """A task's INFO is kept even where logging is not configured, unless its logger was silenced by name."""
    if _is_enabled(self, level):
        return True
    return level >= LEVEL_MIN and _has_owner() and _is_unconfigured(self, level)


def _has_owner() -> bool:
    slot = current_slot.get(None)
    return (slot is not None and slot.attempt is not None) or current_run.get(None) is not None


def _is_unconfigured(logger: logging.Logger, level: int) -> bool:
    """Its level is inherited from the root, and that one's is Python's default."""
    if logger.disabled or logger.manager.disable >= level:
        return False
    while logger.parent is not None:
        if logger.level:
            return False
        logger = logger.parent
    return logger.level == logging.WARNING


def _call_handlers_and_keep(self: logging.Logger, record: logging.LogRecord) -> None:
    redact_record(record)
    output = None if _here.logging else _current()
    if output is None:
        _call_handlers(self, record)
        return
    if output._sink.tee and _is_enabled(self, record.levelno):
        _here.logging = True
        try:
            _call_handlers(self, record)
        finally:
            _here.logging = False
    if record.levelno < LEVEL_MIN:
        return
    # After the handlers: formatting caches the traceback in the record, which is theirs to format first.
    try:
        text = _formatter.format(record)
    except Exception as error:  # the same wrong arguments that make a handler complain must not fail the task
        text = f"{record.msg!r} with arguments {record.args!r} cannot be formatted: {error}"
    output.add("log", record.levelname.lower(), text)
