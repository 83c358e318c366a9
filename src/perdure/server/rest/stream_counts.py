"""The topic `counts` of the stream: one poller per namespace reads the counts, and only while a client listens."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final, Protocol

from perdure.core.errors import Unavailable
from perdure.core.outage import Outage
from perdure.engine.api.api import Api
from perdure.engine.api.statistics import counts_of
from perdure.server.rest.statistics import counts_view

log = logging.getLogger("perdure.server")

COUNTS_POLL_S: Final = 2.0
"""Between two reads of the counts of a namespace."""


class CountsClient(Protocol):
    def put(self, event: str, data: dict[str, Any]) -> None: ...


class CountsFeed:
    """The counts of one namespace, for all who listen."""

    def __init__(self, api: Api, ns: int) -> None:
        self._api, self._ns = api, ns
        self.clients: set[CountsClient] = set()
        self._last: dict[str, Any] | None = None
        self._task: asyncio.Task[None] | None = None

    def join(self, client: CountsClient) -> None:
        """It gets the counts as they are, and then each change."""
        self.clients.add(client)
        if self._last is not None:
            client.put("counts", self._last)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"perdure-counts-feed-{self._ns}")

    def leave(self, client: CountsClient) -> None:
        self.clients.discard(client)
        if not self.clients and self._task is not None:
            self._task.cancel()
            self._task = None
            self._last = None

    async def _run(self) -> None:
        outage = Outage("counting runs for streams", log, time.monotonic)
        while True:
            try:
                await self._poll()
                outage.over()
            except Exception as error:
                outage.failed(error, unexpected=not isinstance(error, Unavailable))
            await asyncio.sleep(COUNTS_POLL_S)

    async def _poll(self) -> None:
        found = counts_view(await counts_of(self._api, self._ns)).model_dump(mode="json")
        if found != self._last:
            self._last = found
            for client in list(self.clients):
                client.put("counts", found)
