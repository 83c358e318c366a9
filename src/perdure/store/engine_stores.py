"""All ports of one engine, on the connections of one store."""

from __future__ import annotations

from perdure.engine.engine import Stores
from perdure.store.deferred_starts import PostgresDeferredStarts
from perdure.store.endings import PostgresEndings
from perdure.store.event_starts import PostgresEventStarts
from perdure.store.named_events import PostgresNamedEvents
from perdure.store.payloads import PostgresPayloads
from perdure.store.postgres import PostgresStore
from perdure.store.retention import PostgresRetention
from perdure.store.schedules import PostgresSchedules
from perdure.store.start_deadlines import PostgresStartDeadlines
from perdure.store.telemetry import PostgresTelemetry
from perdure.store.updates import PostgresUpdates


def engine_stores(store: PostgresStore) -> Stores:
    notes = PostgresTelemetry(store.pool)
    return Stores(
        store=store,
        telemetry=notes,
        task_logs=notes,
        updates=PostgresUpdates(store.pool),
        start_deadlines=PostgresStartDeadlines(store.pool),
        endings=PostgresEndings(store.pool),
        deferred_starts=PostgresDeferredStarts(store.pool),
        schedules=PostgresSchedules(store.pool),
        named_events=PostgresNamedEvents(store.pool),
        event_starts=PostgresEventStarts(store.pool),
        payloads=PostgresPayloads(store.pool),
        retention=PostgresRetention(store.pool),
    )
