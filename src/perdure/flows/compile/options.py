"""How a task is executed: retry, timeout, heartbeat, queue. Document defaults lie over Perdure's own, a node's fields over those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.core.declared import QUEUE
from perdure.core.limits import ATTEMPTS_MAX, NAME_CHARS_MAX
from perdure.core.retry import TaskOptions
from perdure.flows.compile.flow_control import CONTROL_KEYS, read_control
from perdure.flows.compile.reading import Reader
from perdure.flows.problems import Path

QUEUE_DEFAULT: Final = "default"
FACTOR_MAX: Final = 1_000.0
"""Growth of the delay from one attempt to the next."""
ERROR_NAMES_MAX: Final = 100
"""Names in `retry.on` or `retry.never`."""

RETRY_KEYS: Final = ("max_attempts", "delay", "factor", "max_delay", "jitter", "on", "never")
DEFAULTS_KEYS: Final = ("retry", "timeout", "queue", "heartbeat", "start_within", "finish_within")
OPTION_KEYS: Final = (
    "retry",
    "max_retries",
    "timeout",
    "heartbeat",
    "queue",
    "at_most_once",
    "start_within",
    "finish_within",
    *CONTROL_KEYS,
)
DURATION_KEYS: Final = (
    ("timeout", "timeout_us"),
    ("heartbeat", "heartbeat_us"),
    ("start_within", "to_start_us"),
    ("finish_within", "to_close_us"),
)


class ExecutionOptions(msgspec.Struct, frozen=True):
    """Where and how a task runs."""

    queue: str = QUEUE_DEFAULT
    options: TaskOptions = TaskOptions()
    said: frozenset[str] = frozenset()
    """Fields of `options`, and `queue`, that the document gives; a task's own declaration stands where it does not (core/declared.py)."""


def read_defaults(r: Reader, value: Any, path: Path) -> ExecutionOptions:
    if value is None:
        return ExecutionOptions()
    fields = r.mapping(value, path, "defaults")
    if fields is None:
        return ExecutionOptions()
    r.keys(fields, path, "defaults", DEFAULTS_KEYS)
    return read_execution(r, {k: v for k, v in fields.items() if k in DEFAULTS_KEYS}, path, ExecutionOptions())


def read_execution(r: Reader, node: Mapping[str, Any], path: Path, base: ExecutionOptions) -> ExecutionOptions:
    """A node's own options over `base`."""
    if not any(node.get(k) is not None for k in OPTION_KEYS):
        return base
    changed: dict[str, Any] = {}
    if node.get("retry") is not None:
        changed.update(_retry(r, node["retry"], (*path, "retry"), base.options))
        if node.get("max_retries") is not None:
            r.error((*path, "max_retries"), "max_retries and retry say the same thing", "keep retry", key=True)
    elif node.get("max_retries") is not None:
        changed["max_attempts"] = _attempts(r, node["max_retries"], (*path, "max_retries"), "max_retries")
    for key, field in DURATION_KEYS:
        if node.get(key) is not None:
            changed[field] = r.duration(node[key], (*path, key), key)
    if node.get("at_most_once") is not None:
        changed["at_most_once"] = r.boolean(node["at_most_once"], (*path, "at_most_once"), "at_most_once")
    control = read_control(r, node, path)
    if control is not None:
        changed["control"] = control
    queue, said = base.queue, base.said
    if node.get("queue") is not None:
        queue, said = r.name_of(node["queue"], (*path, "queue"), "queue") or queue, said | {QUEUE}
    right = {k: v for k, v in changed.items() if v is not None}
    options = msgspec.structs.replace(base.options, **right) if right else base.options
    return ExecutionOptions(queue, options, said | frozenset(right))


def _attempts(r: Reader, value: Any, path: Path, what: str) -> int | None:
    return r.integer(value, path, f"{what} (executions in all)", 1, ATTEMPTS_MAX)


def _retry(r: Reader, value: Any, path: Path, base: TaskOptions) -> dict[str, Any]:
    if not isinstance(value, dict):
        if isinstance(value, int) and not isinstance(value, bool):
            return {"max_attempts": _attempts(r, value, path, "retry")}
        r.wanted(path, "retry", f"a number of executions in all, or a mapping of {', '.join(RETRY_KEYS)}", value)
        return {}
    fields: dict[str, Any] = value
    r.keys(fields, path, "retry", RETRY_KEYS)
    out: dict[str, Any] = {}
    for key, item in fields.items():
        at = (*path, key)
        match key:
            case "max_attempts":
                out["max_attempts"] = _attempts(r, item, at, "max_attempts")
            case "delay":
                out["initial_us"] = r.duration(item, at, "delay")
            case "max_delay":
                out["cap_us"] = r.duration(item, at, "max_delay")
            case "jitter":
                out["jitter"] = r.boolean(item, at, "jitter")
            case "factor":
                out["factor"] = _factor(r, item, at)
            case "on" | "never":
                out[key] = _errors(r, item, at, key)
            case _:
                pass
    _fit(r, out, path, base)
    return out


def _fit(r: Reader, out: dict[str, Any], path: Path, base: TaskOptions) -> None:
    """The first delay is never above the longest one."""
    first, cap = out.get("initial_us"), out.get("cap_us")
    if first is not None and cap is None:
        out["cap_us"] = max(first, base.cap_us)
    elif cap is not None and cap < (base.initial_us if first is None else first):
        if first is not None:
            r.error((*path, "max_delay"), "max_delay is shorter than delay, the first one")
        out["initial_us"] = cap


def _factor(r: Reader, value: Any, path: Path) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value <= FACTOR_MAX:
        return float(value)
    r.wanted(path, "factor", f"a number from 1 to {FACTOR_MAX:g}", value)
    return None


def _errors(r: Reader, value: Any, path: Path, what: str) -> tuple[str, ...]:
    names = r.names(value, path, what)
    if len(names) > ERROR_NAMES_MAX:
        r.error(path, f"{what} has more than ERROR_NAMES_MAX={ERROR_NAMES_MAX} names")
    for name, at in names:
        if not name or len(name) > NAME_CHARS_MAX:
            r.error(at, f"an entry of {what} is not the name of an error type, such as ValueError")
    return tuple(name for name, _ in names)
