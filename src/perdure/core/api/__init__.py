"""What can be asked of Perdure: requests, replies, and the table of acts that every door is a loop over."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.api import (
    admin,
    approvals,
    cluster,
    dead_letters,
    definitions,
    flow_control,
    messages,
    named_events,
    payloads,
    runs,
    schedules,
    services,
)
from perdure.core.api.act import Act

ACTS: Final[dict[str, Act[Any, Any]]] = {
    act.name: act
    for noun in (
        runs,
        messages,
        approvals,
        named_events,
        schedules,
        definitions,
        flow_control,
        dead_letters,
        cluster,
        services,
        admin,
        payloads,
    )
    for act in noun.ACTS
}
