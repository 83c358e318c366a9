"""An engine and its API on a store, put together as the application does, for tests that need no client."""

from __future__ import annotations

from typing import Any

from perdure.app.api_ports import api_ports
from perdure.engine.api.api import EMBEDDED, Api, Caller, NamespaceApi
from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.store.postgres import PostgresStore
from tests.fakes.engine_stores import stores


def engine_on(store: Any, worker: Any = None, settings: EngineSettings | None = None, **given: Any) -> Engine:
    """`given`: stores of services that are to have work; the others are idle."""
    return Engine(stores(store, **given), worker, settings or EngineSettings())


def api_on(engine: Engine, store: PostgresStore) -> NamespaceApi:
    """The API of the engine's own namespace, as an embedded program has it. The engine is open."""
    caller = Caller(EMBEDDED, engine.settings.namespace, "sdk")
    return NamespaceApi(Api(engine, api_ports(store, is_audited=False), lambda: ""), engine.ns, caller)
