"""The first message of a worker: refused with the reason where it cannot be served."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.calls import is_built_in
from perdure.core.errors import InvalidInput
from perdure.core.limits import BUILD_ID_CHARS_MAX
from perdure.core.names import checked_name
from perdure.core.work import VERSION_PREFIX, is_flow
from perdure.wire.protocol import PROTOCOL, PROTOCOL_OLDEST, SERVED_MAX, TASK_SCHEMAS_BYTES_MAX, Hello

SLOTS_MAX: Final = 10_000
"""Slots of one worker."""


def check_hello(h: Hello) -> None:
    """Refuse a worker that cannot be served, with the reason, before it is registered."""
    if not PROTOCOL_OLDEST <= h.protocol <= PROTOCOL:
        spoken = f"{PROTOCOL_OLDEST} to {PROTOCOL}" if PROTOCOL_OLDEST < PROTOCOL else str(PROTOCOL)
        raise InvalidInput(f"this worker speaks protocol {h.protocol}, this server {spoken}; upgrade the older one")
    if len(h.worker_id) != 16:
        raise InvalidInput("worker_id must be 16 bytes")
    if not 1 <= h.slots <= SLOTS_MAX:
        raise InvalidInput(f"a worker has between 1 and SLOTS_MAX={SLOTS_MAX} slots, not {h.slots}")
    if len(h.running) > 2 * SLOTS_MAX:
        raise InvalidInput(f"a worker brings along at most {2 * SLOTS_MAX} attempts, not {len(h.running)}")
    if len(h.tasks) > SERVED_MAX or len(h.workflows) > SERVED_MAX:
        raise InvalidInput(f"a worker serves at most SERVED_MAX={SERVED_MAX} tasks and workflows")
    flows = next((name for name, code in h.workflows.items() if is_flow(code.version)), None)
    if flows is not None:
        raise InvalidInput(
            f"the workflow {flows[:50]!r} is code: versions that begin with {VERSION_PREFIX!r} are those of flows"
        )
    names = [h.name, *h.workflows, *(x for pair in h.tasks for x in pair)]
    for name in names:
        checked_name("worker, task, queue or workflow", name)
    for code in h.workflows.values():
        checked_name("version", code.version)
    if len(h.build_id) > BUILD_ID_CHARS_MAX:
        raise InvalidInput(f"a build id has at most BUILD_ID_CHARS_MAX={BUILD_ID_CHARS_MAX} characters")


def usable_signatures(h: Hello) -> dict[str, bytes]:
    """Schemas of tasks the worker serves that are JSON objects, if they keep to their bound. They only help editors and readers, so an
    unusable schema is ignored."""
    if sum(map(len, h.signatures.values())) > TASK_SCHEMAS_BYTES_MAX:
        return {}
    served = {name for _, name in h.tasks if not is_built_in(name)}
    return {name: data for name, data in h.signatures.items() if name in served and _is_object(data)}


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
