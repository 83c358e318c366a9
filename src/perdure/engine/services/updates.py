"""Updates: requests to a run for a change, and the callers that wait for the answers.

    ask --> inbox --> UpdateReceived --> the run's code --> UpdateAnswered, and a row with the answer

Laws:

1. An update is carried out once per run and key, however often it is sent: its row is unique, and the run's state knows the keys it has
   seen, those included that an earlier run handed over to it.
2. No caller waits for ever. A run that ends answers what its code did not; an update that a run never read is answered by its end.
3. An answer is returned only when it is durable. Answers of this engine's runs arrive at once; the others are polled together.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

import msgspec

from perdure.core.errors import Failure, NotFound, RunFinished, Unavailable
from perdure.core.ids import ended_run, no_run, text
from perdure.core.limits import SUCCESSORS_MAX
from perdure.core.messages import UpdateMessage
from perdure.core.outage import Outage
from perdure.core.work import RunView, UpdateAnswer
from perdure.engine.ports import Store
from perdure.wire.codec import decode_failure, encode_message

log = logging.getLogger("perdure.engine")

PAGE: Final = 1_000
"""Updates that one query polls for."""
PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 0.5
PAUSE_FACTOR: Final = 1.6

Place = tuple[int, bytes, str]
"""(namespace, run, id of the update)"""


class UpdateSent(msgspec.Struct, frozen=True):
    """The outcome of sending an update."""

    active: bool
    """The run is active and takes messages."""
    known: bool
    """The update is recorded, by this call or an earlier one."""
    answer: UpdateAnswer | None


class SettledUpdate(msgspec.Struct, frozen=True):
    """An update that is settled: answered, or its run has ended or continued as another run."""

    place: Place
    answer: UpdateAnswer | None
    successor: bytes | None


class UpdatePort(Protocol):
    async def ask(self, place: Place, name: str, body: bytes) -> UpdateSent:
        """Put the update into the run's inbox, once."""
        ...

    async def find(self, place: Place) -> UpdateSent: ...
    async def settled(self, places: Sequence[Place]) -> list[SettledUpdate]: ...
    async def states(self, ns: int, run_id: bytes, after: str, limit: int) -> list[tuple[str, bytes]]: ...
    async def query_states(
        self, ns: int, run_id: bytes, states_max: int, bytes_max: int
    ) -> dict[str, bytes] | None: ...


class Updates:
    def __init__(self, port: UpdatePort, store: Store, message_sent: Callable[[bytes], None]) -> None:
        self._port, self._store, self._message_sent = port, store, message_sent
        self._waiting: dict[Place, list[asyncio.Future[UpdateAnswer]]] = {}
        self._places: dict[asyncio.Future[UpdateAnswer], Place] = {}
        self._polling: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def ask(self, ns: int, run_id: bytes, message: UpdateMessage, seconds: float) -> UpdateAnswer | None:
        """The answer, or None after the time limit. A repeated call with the same id waits again."""
        future: asyncio.Future[UpdateAnswer] = asyncio.get_running_loop().create_future()
        try:
            await self._send(ns, run_id, message, future)
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return None
        finally:
            self._drop(future)

    async def _send(self, ns: int, run_id: bytes, message: UpdateMessage, future: asyncio.Future[UpdateAnswer]) -> None:
        """The future is registered before the update is sent, so that no answer is missed."""
        body = encode_message(message)
        for _ in range(SUCCESSORS_MAX):
            place = (ns, run_id, message.id)
            self._wait(place, future)
            asked = await self._port.ask(place, message.name, body)
            if asked.answer is not None:
                self._settle(place, asked.answer)
                return
            if asked.active:
                self._message_sent(run_id)
            if asked.active or asked.known:
                self._look()
                return
            self._drop(future)
            view = await self._view(ns, run_id)
            if view.successor is None:
                raise ended_run(run_id)
            run_id = view.successor
        raise RunFinished("the run was continued too many times to follow")

    async def find(self, ns: int, run_id: bytes, id: str) -> UpdateAnswer | None:
        """The answer that was given, None when it is still to come. NotFound when no update has this id."""
        known = False
        for _ in range(SUCCESSORS_MAX):
            asked = await self._port.find((ns, run_id, id))
            if asked.answer is not None:
                return asked.answer
            known |= asked.known
            if asked.active and known:
                return None
            view = await self._view(ns, run_id)
            if view.successor is None:
                break
            run_id = view.successor
        if not known:
            raise NotFound(
                f"run {text(run_id)} was asked for no update {id!r}, or too long ago for its answer to be kept"
            )
        return UpdateAnswer(b"", _ended(run_id))

    async def states(self, ns: int, run_id: bytes, after: str, limit: int) -> list[tuple[str, bytes]]:
        """The state values that the run has set, as of its last commit."""
        return await self._port.states(ns, run_id, after, limit)

    async def _view(self, ns: int, run_id: bytes) -> RunView:
        view = await self._store.describe(run_id, ns)
        if view is None:
            raise no_run(run_id)
        return view

    def _wait(self, place: Place, future: asyncio.Future[UpdateAnswer]) -> None:
        self._waiting.setdefault(place, []).append(future)
        self._places[future] = place

    def _drop(self, future: asyncio.Future[UpdateAnswer]) -> None:
        place = self._places.pop(future, None)
        left = self._waiting.get(place) if place is not None else None
        if place is not None and left is not None and future in left:
            left.remove(future)
            if not left:
                del self._waiting[place]
        if not self._waiting and self._polling is not None:
            self._polling.cancel()
            self._polling = None

    def answered(self, ns: int, run_id: bytes, answers: list[tuple[str, bytes, bytes | None]]) -> None:
        """Deliver answers that a run of this engine has just committed."""
        for id, value, failure in answers:
            self._settle((ns, run_id, id), answer_of(value, failure))

    def _settle(self, place: Place, answer: UpdateAnswer) -> None:
        for future in self._waiting.pop(place, ()):
            if not future.done():
                future.set_result(answer)

    def wake(self) -> None:
        """Another engine may have written an answer."""
        self._news.set()

    def _look(self) -> None:
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(), name="perdure-updates")

    async def _poll(self) -> None:
        """Poll while callers wait: quickly at first, then slower; at once after a notification."""
        pause_s, outage = PAUSE_S_MIN, Outage("looking for answers to updates", log, monotonic)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.8, 1.2)):
                    await self._news.wait()
            self._news.clear()
            try:
                found = await self._look_once()
                outage.over()
            except Unavailable as e:
                outage.failed(e)
                found = 0
            pause_s = PAUSE_S_MIN if found else min(pause_s * PAUSE_FACTOR, PAUSE_S_MAX)

    async def _look_once(self) -> int:
        places = list(self._waiting)
        if len(places) > PAGE:  # a page at a time, and not always the same one
            places = random.sample(places, PAGE)
        found = await self._port.settled(places) if places else []
        for one in found:
            ns, run_id, id = one.place
            if one.answer is None and one.successor is not None:
                for future in self._waiting.pop(one.place, ()):
                    self._wait((ns, one.successor, id), future)
            else:
                self._settle(one.place, one.answer or UpdateAnswer(b"", _ended(run_id)))
        return len(found)


def answer_of(value: bytes | None, failure: bytes | None) -> UpdateAnswer:
    return UpdateAnswer(value or b"", None if failure is None else decode_failure(failure))


def _ended(run_id: bytes) -> Failure:
    return Failure("run_finished", f"run {text(run_id)} ended before it answered")
