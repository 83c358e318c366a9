"""Perdure in a Flask application: an extension that opens a client in each process, and answers to errors of Perdure.

    perdure = FlaskPerdure()            # beside the other extensions

    def create_app() -> Flask:
        app = Flask(__name__)
        perdure.init_app(app)
        return app

    @app.post("/orders")
    def place() -> dict[str, str]:
        return {"run": perdure.client.start(fulfil, request.json["order"]).id}

The client is opened in each process at its first use, never at import: app/process_client.py. A database or server that is away fails the
handlers that need it, and no others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

from flask import Flask, g, jsonify
from flask.typing import ResponseReturnValue

from perdure.app.process_client import ProcessClient
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
        self._answers_errors = answer_errors
        self._client: ProcessClient[SyncPerdure | SyncClient] = ProcessClient(opener)
        self._failed_at = -OPEN_RETRY_S
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
        return self._client.get()

    def open(self) -> SyncPerdure | SyncClient:
        """Open the client now, so that a worker inside it begins before the first request. Call it in a process that is forked no more."""
        return self._client.get()

    def close(self) -> None:
        """Close the client, if it is open. It is opened again when it is needed."""
        self._client.close()

    def _enter(self) -> None:
        """The client found by context in this request."""
        if not self._client.is_open:
            if time.monotonic() - self._failed_at < OPEN_RETRY_S:
                return
            try:
                self._client.get()
            except Exception as error:
                self._failed_at = time.monotonic()
                log.warning("Perdure could not be opened; handlers that need it will fail: %s", error)
                return
        setattr(g, TOKEN, ambient.set(self.client._client._backend))

    def _leave(self, error: BaseException | None) -> None:
        token = g.pop(TOKEN, None)
        if token is not None:
            with suppress(ValueError):  # a streamed response may end in another context
                ambient.reset(token)


def _answered(error: PerdureError) -> ResponseReturnValue:
    answer = answer_to(error)
    if answer is None:
        raise error
    return jsonify(answer.body), answer.status, answer.headers
