"""The API of an engine: one handler per act, grouped by noun. The table of acts is `perdure.core.api`."""

from perdure.engine.api import (
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

NOUNS = (
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
"""Imported for their handlers, which register themselves."""
