"""What an attempt in the cluster asks the server: to announce, take and give parts of stored content.

An attempt has no connection to the server and no credential. It writes a question to the cluster's key-value store, and the worker that
watches the attempt asks the server and writes the answer. Each of the acts may be repeated, so a question that a crashed worker left is
answered by the next one. A part has at most PAYLOAD_CHUNK_BYTES, and so memory of worker and cluster is bounded, however large a value is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec

from perdure.core.api.act import Act
from perdure.core.api.payloads import ANNOUNCE, GET, PUT
from perdure.core.errors import Failure, InvalidInput, PerdureError, Unavailable
from perdure.executors.port import ExecutorHost

log = logging.getLogger("perdure.worker")

ACTS: Final[dict[str, Act[Any, Any]]] = {act.name: act for act in (ANNOUNCE, PUT, GET)}
"""What may be asked. A task in the cluster reads and writes payloads of its namespace, as one in a worker does, and nothing else."""
ANSWERED_MAX: Final = 8
"""Questions that a worker answers at the same time."""
FOLLOW_S: Final = 1.0
"""After an answer an attempt is looked at more often for so long, because it is likely to ask again."""
FOLLOW_PAUSE_S: Final = 0.05


class Question(msgspec.Struct, frozen=True, array_like=True):
    act: str
    request: bytes


class PayloadAnswer(msgspec.Struct, frozen=True, array_like=True):
    reply: bytes = b""
    failure: Failure | None = None


def encode_question(act: Act[Any, Any], request: Any) -> bytes:
    return msgspec.msgpack.encode(Question(act.name, msgspec.msgpack.encode(request)))


class Questions:
    """The worker's side."""

    def __init__(
        self,
        host: ExecutorHost,
        read: Callable[[str, str], Awaitable[bytes]],
        answer: Callable[[str, str, bytes], Awaitable[None]],
    ) -> None:
        """`read` gives the question of a job by its number, empty if it is gone; `answer` writes what the server said."""
        self._host, self._read, self._write = host, read, answer
        self._answering: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._followed: dict[str, float] = {}
        self._follower: asyncio.Task[None] | None = None

    def answer(self, job: str, numbers: list[str]) -> None:
        """Further ones are answered when they are seen again."""
        for number in numbers:
            key = job, number
            if key not in self._answering and len(self._answering) < ANSWERED_MAX:
                task = self._answering[key] = asyncio.create_task(self._answer(job, number))
                task.add_done_callback(partial(self._answered, key))

    async def close(self) -> None:
        tasks = [*self._answering.values(), *([self._follower] if self._follower is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answered(self, key: tuple[str, str], done: asyncio.Task[None]) -> None:
        del self._answering[key]
        if not done.cancelled() and (error := done.exception()) is not None:  # it is asked again at the next poll
            log.warning("executor ray: a question of %s is not answered yet: %s", key[0], error)

    async def _answer(self, job: str, number: str) -> None:
        data = await self._read(job, number)
        if data:
            await self._write(job, number, msgspec.msgpack.encode(await self._asked(data)))
            self._follow(job)

    async def _asked(self, data: bytes) -> PayloadAnswer:
        try:
            question = msgspec.msgpack.decode(data, type=Question)
            act = ACTS.get(question.act)
            if act is None:
                raise InvalidInput(f"a task on Ray may not ask for {question.act}")
            reply = await self._host.call(act, msgspec.msgpack.decode(question.request, type=act.request))
        except Unavailable:
            raise
        except PerdureError as e:
            return PayloadAnswer(failure=e.to_failure())
        return PayloadAnswer(msgspec.msgpack.encode(reply))

    def _follow(self, job: str) -> None:
        self._followed[job] = asyncio.get_running_loop().time() + FOLLOW_S
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow_all())

    async def _follow_all(self) -> None:
        while self._followed:
            await asyncio.sleep(FOLLOW_PAUSE_S)
            now = asyncio.get_running_loop().time()
            self._followed = {job: until for job, until in self._followed.items() if until > now}
            for job in self._followed:
                self._host.changed(job)
