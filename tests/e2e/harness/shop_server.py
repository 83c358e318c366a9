"""The shop of examples/fastapi_shop as its uvicorn process would serve it, with steps at which a test stops it. See tests/fakes/killed_forks.py."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "fastapi_shop" / "after"))

import sqlalchemy
import uvicorn
from shop.database import engine
from shop.main import app

import perdure.app.embedded
from perdure import EngineSettings
from perdure.sdk.transactions import InTransaction
from tests.fakes.killed_forks import Steps

LEASE_S = 2.0
"""Of the engine in the process: so long after its death the next one takes over its runs."""
FAILS = b"x-fails"
"""Header of a request whose handler raises after it has started the run in its transaction."""

fails: ContextVar[bool] = ContextVar("fails", default=False)
put_off: ContextVar[list[Any]] = ContextVar("put_off")
"""Starts of a request that are made after it, with the planted bug."""


class Boom(Exception):
    pass


class Watched:
    """Steps of requests. Those of the start of the process do not count."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._is_serving = False

    def at(self, step: str) -> None:
        if self._is_serving:
            self._steps.at(step)

    def serves(self) -> None:
        self._is_serving = True
        self._steps.tell("ready")


def serve(listener: socket.socket, arguments: dict[str, Any], steps: Steps) -> None:
    watched = Watched(steps)
    perdure.app.embedded.EngineSettings = lambda: EngineSettings(lease_s=LEASE_S, heartbeat_s=LEASE_S / 4)  # type: ignore
    watch_statements(watched)
    watch_starts(watched)
    if arguments.get("starts_behind_the_commit"):
        plant_bug()
    # Not uvloop: it writes to a socket at the end of a turn, so that nothing would be sent at "commit sent".
    config = uvicorn.Config(asgi(watched), loop="asyncio", log_level="critical", lifespan="on")
    Server(config, watched).run(sockets=[listener])


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, watched: Watched) -> None:
        super().__init__(config)
        self._watched = watched

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._watched.serves()


def watch_statements(watched: Watched) -> None:
    """The insert and the commit, where SQLAlchemy hands them to the driver."""

    def is_insert(statement: str) -> bool:
        return statement.startswith("INSERT INTO orders")

    @sqlalchemy.event.listens_for(engine.sync_engine, "before_cursor_execute")
    def before(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if is_insert(statement):
            watched.at("before the insert")

    @sqlalchemy.event.listens_for(engine.sync_engine, "after_cursor_execute")
    def after(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if is_insert(statement):
            watched.at("after the insert")

    dialect: Any = engine.sync_engine.dialect
    original = dialect.do_commit

    def commit(connection: Any) -> None:
        watched.at("before the commit")
        asyncio.get_running_loop().call_soon(watched.at, "commit sent")  # in the turn in which the answer is waited for
        original(connection)
        watched.at("after the commit")

    dialect.do_commit = commit


def watch_starts(watched: Watched) -> None:
    original: Any = InTransaction.start

    async def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        run_id = await original(self, *args, **kwargs)
        watched.at("after in_transaction")
        if fails.get():
            raise Boom("on purpose")
        return run_id

    InTransaction.start = start  # type: ignore[method-assign]


def plant_bug() -> None:
    """Runs are started when their request is over, as an application without `in_transaction` does."""

    async def start(self: Any, workflow: Any, *args: Any) -> str:
        put_off.get().append((workflow, args))
        return ""

    InTransaction.start = start  # type: ignore[method-assign]


def asgi(watched: Watched) -> Any:
    async def served(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 201:
                watched.at("before the response")
            await send(message)

        fails.set(any(name == FAILS for name, _ in scope.get("headers", ())))
        put_off.set([])
        await app(scope, receive, sent)
        for workflow, args in put_off.get():
            await workflow.start(*args)

    return served
