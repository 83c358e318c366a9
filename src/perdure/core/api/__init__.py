"""What can be asked of Perdure: requests, replies, and the table of acts that every door is a loop over."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.api import (
    admin,
    approvals,
    attempts,
    bulk_jobs,
    cluster,
    dead_letters,
    definitions,
    flow_control,
    inspection,
    messages,
    named_events,
    notifications,
    payloads,
    repairs,
    retention,
    run_paths,
    runs,
    saved_views,
    schedules,
    services,
    statistics,
    timeline,
    versions,
    workflow_runs,
)
from perdure.core.api.act import Act

ACTS: Final[dict[str, Act[Any, Any]]] = {
    act.name: act
    for noun in (
        runs,
        run_paths,
        attempts,
        timeline,
        workflow_runs,
        saved_views,
        bulk_jobs,
        messages,
        approvals,
        named_events,
        notifications,
        schedules,
        definitions,
        versions,
        flow_control,
        retention,
        inspection,
        statistics,
        dead_letters,
        cluster,
        services,
        admin,
        payloads,
        repairs,
    )
    for act in noun.ACTS
}
