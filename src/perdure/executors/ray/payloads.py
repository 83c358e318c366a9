"""The payload store as an attempt in the cluster reaches it.

An object store that the node was given (PERDURE_PAYLOADS in its environment) is read and written by the attempt itself. Content of the
database passes through the worker that watches the attempt, in parts: see questions.py. Either way the history gets a reference.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from perdure.core.api.act import Act
from perdure.core.api.payloads import ANNOUNCE, GET, PUT, AnnouncePayloads, GetPayload, PutPayload
from perdure.core.error_codes import error_for
from perdure.core.errors import Unavailable
from perdure.core.payload_port import AnnouncedPayload, PayloadPlaces, Place
from perdure.executors.ray.questions import PayloadAnswer, encode_question
from perdure.executors.ray.records import ANSWER, QUESTION, Records
from perdure.payloads.objects import STORES_VARIABLE, ObjectStores, payload_urls
from perdure.payloads.transfer import PayloadTransfer

T = TypeVar("T")

ANSWER_PAUSE_S: Final = 0.02
ANSWER_PAUSE_S_MAX: Final = 0.5
"""Between looks for an answer. There is none for as long as no worker watches the attempt."""
STORE_PAUSE_S: Final = 5.0
STORE_S_MAX: Final = 600.0
"""How long an attempt waits for an object store that does not answer, before it fails."""


class AskedPayloads:
    """A PayloadPort by questions to the worker that watches the attempt."""

    def __init__(self, records: Records, job: str) -> None:
        self._records, self._job, self._numbers = records, job, count(1)

    async def announce(self, store: str, items: list[AnnouncedPayload]) -> PayloadPlaces:
        places: PayloadPlaces = await self._ask(ANNOUNCE, AnnouncePayloads(store, items))
        return places

    async def put(self, sha256: bytes, size: int, offset: int, data: bytes, holds: list[Place]) -> bool:
        return bool((await self._ask(PUT, PutPayload(sha256, size, offset, data, holds))).is_complete)

    async def get(self, sha256: bytes, offset: int, size: int) -> bytes:
        data: bytes = (await self._ask(GET, GetPayload(sha256, offset, size))).data
        return data

    async def _ask(self, act: Act[Any, Any], request: Any) -> Any:
        number = f"{next(self._numbers):06}"
        await asyncio.to_thread(self._records.put, f"{QUESTION}{self._job}/{number}", encode_question(act, request))
        answer = msgspec.msgpack.decode(await self._answer(f"{ANSWER}{self._job}/{number}"), type=PayloadAnswer)
        if answer.failure is not None:
            raise error_for(answer.failure.code, answer.failure.message)
        return msgspec.msgpack.decode(answer.reply, type=act.reply)

    async def _answer(self, key: str) -> bytes:
        pause_s = ANSWER_PAUSE_S
        while (data := await asyncio.to_thread(self._records.get, key)) is None:
            await asyncio.sleep(pause_s)
            pause_s = min(1.2 * pause_s, ANSWER_PAUSE_S_MAX)
        await asyncio.to_thread(self._records.remove, key)
        return data


class AttemptPayloads:
    """A JobPayloads: transfers run on an event loop in a thread of their own, beside the task."""

    def __init__(self, records: Records, job: str, inline_bytes: int) -> None:
        stores = ObjectStores(payload_urls(os.environ.get(STORES_VARIABLE, "")))
        self.carrier = PayloadTransfer(AskedPayloads(records, job), stores, inline_bytes)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def loaded(self, payload: bytes) -> bytes:
        """An input, with its stored values in their places."""
        return self._patiently(lambda: self.carrier.resolve(payload))

    def stored(self, payload: bytes, what: str) -> bytes:
        """A result as it may be recorded."""
        return self._patiently(lambda: self.carrier.offload(payload, what))

    def _patiently(self, work: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """The work of an attempt is not thrown away because the store is away for a moment."""
        until = time.monotonic() + STORE_S_MAX
        while True:
            try:
                return self.wait(work())
            except Unavailable:
                if time.monotonic() > until:
                    raise
            time.sleep(STORE_PAUSE_S)
