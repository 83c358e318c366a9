"""Log records without the values of secrets, before any handler formats them."""

from __future__ import annotations

import logging
from typing import Any, Final, cast

from perdure.core.redaction import Redactor
from perdure.sdk.secrets.known import known

DEPTH_MAX: Final = 6
"""Lists and objects of `extra` within each other that are looked into; deeper ones are told as text."""
_formatter: Final = logging.Formatter()
_PLAIN: Final = (int, float, bool, type(None))


def redact_record(record: logging.LogRecord) -> None:
    """A traceback that holds a value becomes a part of the message: handlers would format it anew from the exception."""
    redactor = known.redactor
    if redactor.is_empty:
        return
    try:
        if isinstance(record.msg, dict):
            record.msg = _clean(record.msg, redactor)
        else:
            message = record.getMessage()
            clean = redactor.text(message)
            if clean != message:
                record.msg, record.args = clean, None
    except Exception:  # wrong arguments: handlers complain about them on a stream that masks secrets
        pass
    if record.exc_info and record.exc_info[0] is not None:
        trace = _formatter.formatException(record.exc_info)
        clean = redactor.text(trace)
        if clean != trace:
            if isinstance(record.msg, dict):
                record.msg = {**record.msg, "exception": clean}
                record.msg.pop("exc_info", None)
            else:
                record.msg, record.args = f"{_said(record)}\n{clean}", None
            record.exc_info = record.exc_text = None
    for name, value in list(vars(record).items()):
        if name not in ("msg", "args", "exc_info") and not isinstance(value, _PLAIN):
            changed = _clean(value, redactor)
            if changed is not value:
                setattr(record, name, changed)


def _said(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        return str(record.msg)


def _clean(value: Any, redactor: Redactor, depth: int = 0) -> Any:
    """The value itself where there is nothing to mask."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, str):
        clean = redactor.text(value)
        return value if clean == value else clean
    text = repr(value)
    clean = redactor.text(text)
    if clean == text:
        return value
    if isinstance(value, dict) and depth < DEPTH_MAX:
        found: dict[Any, Any] = value
        return {_clean(k, redactor, depth + 1): _clean(v, redactor, depth + 1) for k, v in found.items()}
    if isinstance(value, list | tuple) and depth < DEPTH_MAX:
        return [_clean(item, redactor, depth + 1) for item in cast(list[Any], value)]
    return clean
