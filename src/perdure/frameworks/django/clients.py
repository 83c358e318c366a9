"""The client of this process.

A web server loads the application in one process and forks others. A client has an event loop in a thread, which a fork does not copy. So it is
opened by the first call in each process, and a child of a fork forgets the one of its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from pathlib import Path

from perdure.app.sync import OpenedHere, SyncClient, SyncPerdure
from perdure.engine.settings import EngineSettings
from perdure.frameworks.django.configuration import DjangoSettings, configuration, database_dsn
from perdure.sdk.client.base import ClientBase
from perdure.sdk.client.channel import Tls
from perdure.sdk.client.sync_surface import SyncClientBase


class ProcessClient:
    """Opened by its first use, closed when the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: OpenedHere | None = None

    def get(self) -> OpenedHere:
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = _new_client(configuration()).__enter__()
        return self._opened

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def forget(self) -> None:
        """In the child of a fork: the threads of the client are in the parent, and its lock may be taken for good."""
        opened, self._opened, self._lock = self._opened, None, threading.Lock()
        if opened is not None:
            opened._client._backend.close()  # touches no connection: code without a client at hand finds it no more


process_client = ProcessClient()
atexit.register(process_client.close)
os.register_at_fork(after_in_child=process_client.forget)


def client() -> SyncClientBase:
    """The blocking client of this process, for views and commands. It may be used from every thread."""
    return process_client.get()


async def aclient() -> ClientBase:
    """The client of this process for async views: `await (await aclient()).get(run)`. It may be used from every event loop."""
    opened = process_client.get() if process_client.is_open else await asyncio.to_thread(process_client.get)
    return opened._client


def close() -> None:
    """Close the client of this process; the next use opens another one. Tests do so before their database is dropped."""
    process_client.close()


def _new_client(given: DjangoSettings) -> OpenedHere:
    if given.is_embedded:
        assert given.database is not None
        return SyncPerdure(
            database_dsn(given.database),
            worker=False,
            tune_gc=False,
            call_timeout=given.call_timeout,
            settings=EngineSettings(namespace=given.namespace) if given.namespace else None,
        )
    return SyncClient(
        given.server,
        api_key=given.api_key,
        namespace=given.namespace,
        tls=_tls(given),
        call_timeout=given.call_timeout,
    )


def _tls(given: DjangoSettings) -> Tls | None:
    if given.tls_ca is not None:
        return Tls(Path(given.tls_ca).read_bytes())
    return Tls() if given.tls else None
