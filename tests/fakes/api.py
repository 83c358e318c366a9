"""An engine and its API on a store, put together as the application does, for tests that need no client."""

from __future__ import annotations

from typing import Any

from perdure.app.api_ports import api_ports
from perdure.engine.api.api import EMBEDDED, Api, Caller, NamespaceApi
from perdure.engine.engine import Engine, EngineSettings
from perdure.engine.services.named_events import NamedEvents
from perdure.engine.services.telemetry import Notes
from perdure.store.deferred_starts import PostgresStarts
from perdure.store.named_events import PostgresNamedEvents
from perdure.store.postgres import PostgresStore
from perdure.store.schedules import PostgresSchedules
from perdure.store.updates import PostgresUpdates


def engine_on(
    store: PostgresStore, worker: Any = None, settings: EngineSettings | None = None, notes: Notes | None = None
) -> Engine:
    """With every port that an engine needs."""
    pool = store.pool
    return Engine(
        store,
        worker,
        settings or EngineSettings(),
        notes,
        updates=PostgresUpdates(pool),
        starts=PostgresStarts(pool),
        schedules=PostgresSchedules(pool),
        named_events=NamedEvents(PostgresNamedEvents(pool)),
    )


def api_on(engine: Engine, store: PostgresStore) -> NamespaceApi:
    """The API of the engine's own namespace, as an embedded program has it. The engine is open."""
    caller = Caller(EMBEDDED, engine.settings.namespace, "sdk")
    return NamespaceApi(Api(engine, api_ports(store, is_audited=False), lambda: ""), engine.ns, caller)
