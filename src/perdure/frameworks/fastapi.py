"""Perdure in a FastAPI application: a lifespan that opens the client, dependencies that give it to handlers, and answers to its errors.

    app = FastAPI(lifespan=lifespan(Perdure))
    answer_errors(app)

    @app.post("/orders")
    async def place(order: NewOrder, client: PerdureClient) -> str:
        return (await client.start(fulfil, order)).id

Handlers, plain functions in FastAPI's threads and background tasks also find the client by context: `fulfil.start(order)`, `signal.send()`,
`client()`, `sync_client()`. With several clients in one process that needs one of the dependencies, on the route, the router or the application.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Depends, FastAPI, Request
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse

from perdure.app.embedded import Perdure
from perdure.app.sync import sync_client
from perdure.app.web_answers import answer_to
from perdure.core.errors import PerdureError
from perdure.sdk.client.backend import ambient
from perdure.sdk.client.base import ClientBase, ContextClient
from perdure.sdk.client.sync_surface import SyncClientBase

Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[ClientBase]]
"""Makes a client to open: `Perdure`, `Client`, `partial(Client, "host:8601")`."""
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""A lifespan of FastAPI."""

STATE: Final = "perdure"
"""Attribute of `app.state` with the open client."""


@asynccontextmanager
async def opened(app: FastAPI, opener: Opener = Perdure) -> AsyncGenerator[ClientBase]:
    """Open a client for an application, inside a lifespan of its own.

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            async with database(), opened(app, Perdure):
                yield

    What tasks use is opened before it, so that it is closed after it.

    Args:
        app: the application; `app.state.perdure` is the client while it is open.
        opener: makes the client: `Perdure` for an engine with workers in this process, `Client` for a server. A function, because an application
            may be started more than once, as tests do.
    """
    async with opener() as client:
        setattr(app.state, STATE, client)
        try:
            yield client
        finally:
            delattr(app.state, STATE)


def lifespan(opener: Opener = Perdure, *, own: Lifespan | None = None) -> Lifespan:
    """A lifespan that opens a client: `FastAPI(lifespan=lifespan(Perdure))`.

    Args:
        opener: makes the client, as for `opened`.
        own: the lifespan that the application has already. It is entered before the client is opened and left after it is closed, because tasks
            use what it opens. Its state is that of the application.
    """

    @asynccontextmanager
    async def open_for(app: FastAPI) -> AsyncGenerator[Mapping[str, Any] | None]:
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(own(app)) if own is not None else None
            await stack.enter_async_context(opened(app, opener))
            yield state

    return open_for


async def perdure_client(connection: HTTPConnection) -> ClientBase:
    """The client of the application. From here on it is also the one that the request finds by context."""
    found: ClientBase | None = getattr(connection.app.state, STATE, None)
    if found is None:
        found = ContextClient()  # of the application that this one is mounted in
    ambient.set(found._backend)
    return found


async def perdure_sync_client(client: PerdureClient) -> SyncClientBase:
    """The client of the application in its blocking form."""
    return sync_client(client)


PerdureClient: TypeAlias = Annotated[ClientBase, Depends(perdure_client)]
"""A parameter of a handler: the client of the application."""
SyncPerdureClient: TypeAlias = Annotated[SyncClientBase, Depends(perdure_sync_client)]
"""A parameter of a handler that is a plain function: the client of the application, blocking. It may not be used in an `async def`."""


def answer_errors(app: FastAPI) -> None:
    """Answer errors of Perdure with their HTTP status, `{"detail": ..., "code": ...}` and, where it helps, `Retry-After`.

    Unavailable is 503, NotFound 404, Conflict 409, InvalidInput 422. Faults of the application itself, such as a refused API key or a workflow that
    is not registered, stay what they are: 500, with a traceback in the log.
    """

    async def answered(request: Request, error: Exception) -> JSONResponse:
        answer = answer_to(error)
        if answer is None:
            raise error
        return JSONResponse(answer.body, answer.status, answer.headers)

    app.add_exception_handler(PerdureError, answered)
