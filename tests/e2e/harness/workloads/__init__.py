"""Workloads that run side by side on one fleet: see harness/storm.py."""

from __future__ import annotations

from harness.storm import Workload
from harness.workloads.agent import AgentLoad
from harness.workloads.bulk import BulkLoad
from harness.workloads.django import DjangoLibrary
from harness.workloads.event_starts import EventStarts
from harness.workloads.fastapi import FastApiShop
from harness.workloads.limits import Limits
from harness.workloads.notifications import Notifications
from harness.workloads.payloads import LargePayloads
from harness.workloads.retention import RetentionLoad
from harness.workloads.schedules import Schedules


def all_workloads() -> list[Workload]:
    """Retention first: it sets the clock of the database back while it prepares."""
    return [
        RetentionLoad(),
        BulkLoad(),
        AgentLoad(),
        DjangoLibrary(),
        EventStarts(),
        FastApiShop(),
        Limits(),
        Notifications(),
        LargePayloads(),
        Schedules(),
    ]
