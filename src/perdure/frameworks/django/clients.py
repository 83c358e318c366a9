"""The client of this process, opened by its first use: app/process_client.py."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.app.process_client import ProcessClient
from perdure.app.sync import OpenedHere, SyncClient, SyncPerdure
from perdure.engine.settings import EngineSettings
from perdure.frameworks.django.configuration import DjangoSettings, configuration, database_dsn
from perdure.sdk.client.base import ClientBase
from perdure.sdk.client.channel import Tls
from perdure.sdk.client.sync_surface import SyncClientBase

process_client: ProcessClient[OpenedHere] = ProcessClient(lambda: _new_client(configuration()))


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
