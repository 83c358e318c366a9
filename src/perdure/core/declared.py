"""Options that a task declares where it is defined (`@task(queue="gpu", rate=...)`), for callers that do not have the function at hand.

Workers say them with the signatures of their tasks. When a flow schedules a task, the declared options are laid under those of the flow, field by
field: Perdure's defaults < the task's declaration < `defaults:` of the flow < the node. The outcome is recorded in the event that schedules
the task, and a replay takes it from there: a later declaration changes what is scheduled later, and nothing that was.
"""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.flow_control.options import FlowControlSpec
from perdure.core.retry import TaskOptions

KEY: Final = "x-perdure"
"""Of a task's signature: its declared options, where it has any."""
QUEUE: Final = "queue"
CONTROL: Final = "control"
SECRETS: Final = "secrets"
"""Only the text of a flow says where secrets stand."""
_CONTROL: Final = FlowControlSpec()


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    queue: str = ""
    options: TaskOptions = TaskOptions()
    said: tuple[str, ...] = ()
    """Fields of `options` that were given; the others are defaults and do not count."""


def laid_under(
    declared: Declared | None, queue: str, options: TaskOptions, said: frozenset[str]
) -> tuple[str, TaskOptions]:
    """Queue and options of a call: those the caller gave, else those the task declares, else the caller's defaults."""
    if declared is None:
        return queue, options
    changed = {
        field: getattr(declared.options, field)
        for field in declared.said
        if field not in (CONTROL, SECRETS) and field not in said
    }
    control = _merged(declared.options.control, options.control)
    if control != options.control:
        changed[CONTROL] = control
    if QUEUE not in said and declared.queue:
        queue = declared.queue
    return queue, msgspec.structs.replace(options, **changed) if changed else options


def _merged(declared: FlowControlSpec | None, own: FlowControlSpec | None) -> FlowControlSpec | None:
    """Limits, rates, priority, fairness and weight each: the caller's where it says something."""
    if declared is None or own is None:
        return own or declared
    fields = {
        field: given if (given := getattr(own, field)) != getattr(_CONTROL, field) else getattr(declared, field)
        for field in FlowControlSpec.__struct_fields__
    }
    return FlowControlSpec(**fields)


def encode(declared: Declared) -> bytes:
    return msgspec.json.encode(declared)


def decode(data: bytes) -> Declared | None:
    """None for what cannot be read: a newer worker may say more than this server knows."""
    try:
        return msgspec.json.decode(data, type=Declared)
    except msgspec.MsgspecError:
        return None


def split(signature: bytes) -> tuple[bytes, bytes | None]:
    """A task's signature as it travels: the JSON Schema of its call, and its declared options as JSON."""
    if b'"' + KEY.encode() + b'"' not in signature:
        return signature, None
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(signature, type=dict[str, msgspec.Raw])
    said = fields.pop(KEY, None)
    return msgspec.json.encode(fields), bytes(said) if said is not None else None
