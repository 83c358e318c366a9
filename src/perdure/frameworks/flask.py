"""Perdure in a Flask application: an extension that opens a client in each process, and answers to errors of Perdure.

    perdure = FlaskPerdure()            # beside the other extensions

    def create_app() -> Flask:
        app = Flask(__name__)
        perdure.init_app(app)
        return app

    @app.post("/orders")
    def place() -> dict[str, str]:
        return {"run": perdure.client.start(fulfil, request.json["order"]).id}

Laws:

1. The client is opened at its first use, never at import: servers such as gunicorn import the application and fork afterwards, and neither
   connections nor threads survive a fork. A process that is forked while a client is open opens one of its own.
2. A process has one client, which all of its threads use. It is closed when the process ends.
3. A database or server that is away fails the handlers that need it, and no others.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from flask import Flask, g, jsonify
from flask.typing import ResponseReturnValue

from perdure.app.sync import SyncClient, SyncPerdure
from perdure.app.web_answers import answer_to
from perdure.core.errors import PerdureError
from perdure.sdk.client.backend import ambient

log = logging.getLogger("perdure.flask")

SyncOpener: TypeAlias = Callable[[], SyncPerdure | SyncClient]
"""Makes a client to open: `SyncPerdure`, `SyncClient`, `partial(SyncClient, "host:8601")`."""

OPEN_RETRY_S: Final = 5.0
"""After a client could not be opened: how long requests do not try it, unless their handler asks for the client."""
TOKEN: Final = "perdure_token"
"""Attribute of `flask.g`."""


class FlaskPerdure:
    """The client of a Flask application.

    Args:
        app: the application, or none: then call `init_app`.
        opener: makes the client: `SyncPerdure` for an engine with workers in this process, `SyncClient` for a server.
        answer_errors: answer errors of Perdure with their HTTP status: 503 and `Retry-After` for Unavailable, 404 for NotFound, 409 for Conflict, 422
            for InvalidInput.
    """

    def __init__(
        self, app: Flask | None = None, opener: SyncOpener = SyncPerdure, *, answer_errors: bool = True
    ) -> None:
        self._opener, self._answers_errors = opener, answer_errors
        self._lock = threading.Lock()
        self._client: SyncPerdure | SyncClient | None = None
        self._failed_at = -OPEN_RETRY_S
        _extensions.add(self)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Register with an application. Handlers of it find the client by context: `sync_client()`."""
        app.extensions["perdure"] = self
        app.before_request(self._enter)
        app.teardown_request(self._leave)
        if self._answers_errors:
            app.register_error_handler(PerdureError, _answered)

    @property
    def client(self) -> SyncPerdure | SyncClient:
        """The client of this process, opened when it is asked for first. Raises what opening it raises."""
        return self._client or self.open()

    def open(self) -> SyncPerdure | SyncClient:
        """Open the client now, so that a worker inside it begins before the first request. Call it in a process that is forked no more."""
        with self._lock:
            if self._client is None:
                try:
                    self._client = self._opener().__enter__()
                except BaseException:
                    self._failed_at = time.monotonic()
                    raise
                atexit.register(self.close)
            return self._client

    def close(self) -> None:
        """Close the client, if it is open. It is opened again when it is needed."""
        with self._lock:
            client, self._client = self._client, None
        atexit.unregister(self.close)
        if client is not None:
            client.__exit__(None, None, None)

    def _enter(self) -> None:
        """The client found by context in this request."""
        if self._client is None:
            if time.monotonic() - self._failed_at < OPEN_RETRY_S:
                return
            try:
                self.open()
            except Exception as error:
                log.warning("Perdure could not be opened; handlers that need it will fail: %s", error)
                return
        setattr(g, TOKEN, ambient.set(self.client._client._backend))

    def _leave(self, error: BaseException | None) -> None:
        token = g.pop(TOKEN, None)
        if token is not None:
            with suppress(ValueError):  # a streamed response may end in another context
                ambient.reset(token)

    def forget(self) -> None:
        """In a process that was forked: the thread and the connections of the client are those of its parent."""
        client, self._client, self._lock = self._client, None, threading.Lock()
        if client is not None:
            client._client._backend.close()  # it is not found any more; nothing is sent
            _of_parents.append(client)


_extensions: WeakSet[FlaskPerdure] = WeakSet()
_of_parents: list[Any] = []
"""Kept for good: collected, they would close what they share with the parent, such as the selector of an event loop."""


def _forget_all() -> None:
    for extension in list(_extensions):
        extension.forget()


os.register_at_fork(after_in_child=_forget_all)


def _answered(error: PerdureError) -> ResponseReturnValue:
    answer = answer_to(error)
    if answer is None:
        raise error
    return jsonify(answer.body), answer.status, answer.headers
