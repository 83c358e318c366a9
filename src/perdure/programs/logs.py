"""Logs of a process: one line per event, as text for a terminal or as JSON.

Everything goes through the standard `logging`, so libraries' and users' records look like ours. A line that is written while a
task or workflow code runs says which: run_id, task, attempt are looked up where the record is made.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from perdure.core import ids
from perdure.core.names import escaped
from perdure.programs.log_repeats import RepeatsHandler
from perdure.programs.terminal import Guarded
from perdure.sdk.worker.attempts import current_slot
from perdure.sdk.workflow.live_run import current
from perdure.wire import otlp

Format = Literal["text", "json"]
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FIRST: Final = ("timestamp", "level", "logger", "event")
_HANDLER: Final = "perdure"


def add_whereabouts(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add the run and attempt that a line comes from, if any."""
    slot = current_slot.get(None)
    attempt = slot.attempt if slot is not None else None
    if attempt is not None:
        event.setdefault("run_id", attempt.run_id)
        event.setdefault("task", attempt.task)
        event.setdefault("seq", attempt.seq)
        event.setdefault("attempt", attempt.number)
        return event
    run = current.get(None)
    if run is not None:
        event.setdefault("run_id", ids.text(run.run_id))
    return event


_extra = structlog.stdlib.ExtraAdder()


def _add_extra(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The values of `extra=`, without those that other handlers and libraries (Ray: `_ray_timestamp_ns`) add to every record."""
    if event.get("_record") is None:
        return event
    before = event.keys()
    return {
        name: value
        for name, value in _extra(logger, method, {**event}).items()
        if name in before or not (name.startswith("_") or name in ("message", "asctime"))
    }


def configure(
    format: Format = "text",
    level: str = "info",
    *,
    stream: TextIO | None = None,
    color: bool | None = None,
    **always: Any,
) -> None:
    """Set up the process's logs; may be called again. `always` goes into every line, for instance worker="..."."""
    if level.lower() not in LEVELS:
        raise ValueError(f"unknown log level {level!r}; choose one of {', '.join(LEVELS)}")
    target: Any = stream if stream is not None else sys.stderr
    colored = color if color is not None else format == "text" and target.isatty()
    shared = _shared(always)
    handler = RepeatsHandler(target.raw if colored and isinstance(target, Guarded) else target)
    handler.set_name(_HANDLER)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(format, colored)],
        )
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == _HANDLER]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # The pool logs a traceback for every failed reconnection; the work that needs the connection says the same in one line.
    logging.getLogger("asyncpg.pool").setLevel("DEBUG" if level.lower() == "debug" else "ERROR")
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


@asynccontextmanager
async def exported(service: str) -> AsyncGenerator[None]:
    """Sends every log record to an OpenTelemetry collector as well, where the environment names one."""
    if not otlp.wanted("logs"):
        yield
        return
    handler, shutdown = otlp.log_handler(service)
    handler.addFilter(_add_whereabouts)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        await otlp.flush(shutdown)


def _add_whereabouts(record: logging.LogRecord) -> bool:
    """As attributes of the record. The exporter's own complaints are left out: they would cause the next ones."""
    for key, value in add_whereabouts(None, "", {}).items():
        setattr(record, key, value)
    return not record.name.startswith("opentelemetry")


def _shared(always: dict[str, Any]) -> list[Processor]:
    def add_always(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        for key, value in always.items():
            event.setdefault(key, value)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _add_extra,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        add_whereabouts,
        add_always,
        structlog.processors.StackInfoRenderer(),
    ]


def _in_order(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Common keys come first, for readability."""
    return {key: event.pop(key) for key in FIRST if key in event} | dict(event)


def _escape(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Names and texts from outside must not control the terminal."""
    return {key: escaped(value) if isinstance(value, str) else value for key, value in event.items()}


def _renderers(format: Format, colored: bool) -> list[Processor]:
    if format == "json":
        return [
            structlog.processors.format_exc_info,
            _in_order,
            structlog.processors.JSONRenderer(),
        ]
    plain = structlog.dev.plain_traceback  # the pretty one prints local variables: they may hold secrets
    return [_escape, structlog.dev.ConsoleRenderer(colors=colored, pad_event_to=0, exception_formatter=plain)]
