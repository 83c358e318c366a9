"""An engine and its API on a store, put together as the application does, for tests that need no client."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.app.api_ports import api_ports
from perdure.engine.api.api import EMBEDDED, Api, Caller, NamespaceApi
from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.store.engine_stores import engine_stores
from perdure.store.postgres import PostgresStore


def engine_on(store: Any, worker: Any = None, settings: EngineSettings | None = None, **given: Any) -> Engine:
    """On PostgreSQL, as the application builds it; `given` replaces single stores."""
    stores = msgspec.structs.replace(engine_stores(store), **given)
    return Engine(stores, worker, settings or EngineSettings())


def api_on(engine: Engine, store: PostgresStore) -> NamespaceApi:
    """The API of the engine's own namespace, as an embedded program has it. The engine is open."""
    caller = Caller(EMBEDDED, engine.settings.namespace, "sdk")
    return NamespaceApi(Api(engine, api_ports(store, is_audited=False), lambda: ""), engine.ns, caller)
