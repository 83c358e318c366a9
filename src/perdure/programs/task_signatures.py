"""Signatures of tasks that workers register: gathered, and written to the database only where they changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from perdure.core.errors import Unavailable
from perdure.engine.api.ports import Definitions

log = logging.getLogger("perdure.server")

GATHER_S: Final = 0.2
KNOWN_MAX: Final = 20_000
"""Tasks that are remembered as written."""


class TaskTypes:
    """Receives the signatures of every worker that connects. The same signatures from a thousand workers cost one write."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._known: dict[tuple[int, str], bytes] = {}
        self._news: dict[int, dict[str, bytes]] = {}
        self._writing: asyncio.Task[None] | None = None

    def received(self, ns: int, signatures: Mapping[str, bytes]) -> None:
        fresh = {n: s for n, s in signatures.items() if self._known.get((ns, n)) != s}
        if not fresh:
            return
        if len(self._known) + len(fresh) > KNOWN_MAX:
            self._known.clear()
        self._known.update({(ns, n): s for n, s in fresh.items()})
        self._news.setdefault(ns, {}).update(fresh)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        await asyncio.sleep(GATHER_S)
        self._writing, news, self._news = None, self._news, {}
        for ns, signatures in news.items():
            try:
                await self._definitions.save_task_types(ns, signatures)
            except Unavailable as e:  # only editor support is affected, until a worker connects again
                log.warning("the arguments of %d tasks are not recorded: %s", len(signatures), e)
                for name in signatures:
                    self._known.pop((ns, name), None)

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
