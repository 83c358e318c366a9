"""What a client talks to: the engine in this process, or a server. And how code without a client at hand finds one.

A connection belongs to the event loop that opened it. A `Backend` may be used from any loop and any thread: a call from elsewhere is
carried out on the loop of the connection, and ends in its time even if that loop does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from perdure.core.api.act import Act
from perdure.core.deadlines import unanswered
from perdure.core.errors import PerdureError
from perdure.core.payload_port import PayloadCarrier

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

OTHER_LOOP_S: Final = 1.0
"""Beside the time of a call: how long the loop of the connection may take to answer that the time is over."""


class Acts(Protocol):
    """What can be asked, on one event loop."""

    @property
    def timeout_s(self) -> float:
        """How long a call may take unless it says otherwise."""
        ...

    def call(self, act: Act[Q, R], request: Q, within_s: float | None = None) -> Coroutine[Any, Any, R]:
        """Ask for an act. Raises what the act raises, and Unavailable when there is no answer in time."""
        ...

    @property
    def payloads(self) -> PayloadCarrier:
        """Stored content that payloads refer to."""
        ...

    def adopt(self, definition: Any) -> None:
        """Serve a workflow here, if anything is served here."""
        ...


class Backend:
    """The acts of one open client, for every loop and thread of this process."""

    __slots__ = ("_acts", "_is_closed", "_loop")

    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def acts(self) -> Acts:
        return self._acts

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of the connection, once it is open."""
        return self._loop

    @property
    def payloads(self) -> PayloadCarrier:
        """On the loop of the connection only."""
        return self._acts.payloads

    def adopt(self, definition: Any) -> None:
        if self._is_here():
            self._acts.adopt(definition)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._acts.adopt, definition)

    def call(self, act: Act[Q, R], request: Q, within_s: float | None = None) -> Coroutine[Any, Any, R]:
        """Not a coroutine itself: every start passes through here."""
        if self._is_here():
            return self._acts.call(act, request, within_s)
        limit_s = (self._acts.timeout_s if within_s is None else within_s) + act.wait_s(request)
        return self._elsewhere(lambda: self._acts.call(act, request, within_s), limit_s, effect=bool(act.audits))

    def carry_out(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Something of the client's own, on the loop of the connection."""
        return work() if self._is_here() else self._elsewhere(work, None)

    def _is_here(self) -> bool:
        if self._is_closed:
            raise PerdureError("this client is closed: open it again with `async with` (or `with`), or use another one")
        return self._loop is None or self._loop is running_loop()

    async def _elsewhere(
        self, work: Callable[[], Coroutine[Any, Any, T]], limit_s: float | None, *, effect: bool = False
    ) -> T:
        loop = self._loop
        assert loop is not None

        async def begun() -> T:
            return await work()

        future: Future[T] = asyncio.run_coroutine_threadsafe(begun(), loop)
        waited = asyncio.wrap_future(future)
        if limit_s is None:
            return await waited
        done, _ = await asyncio.wait({waited}, timeout=limit_s + OTHER_LOOP_S)
        if done:
            return waited.result()
        waited.cancel()
        raise unanswered(limit_s, effect=effect)

    def open(self, *, is_found: bool = True) -> None:
        """On this loop. `is_found`: code finds the client from now on, also where the context of its `async with` does not reach."""
        self._loop, self._is_closed = asyncio.get_running_loop(), False
        if is_found:
            _open.append(self)

    def close(self) -> None:
        self._is_closed = True
        _open[:] = [one for one in _open if one is not self]


ambient: ContextVar[Backend] = ContextVar("perdure_client")
_open: list[Backend] = []
"""Clients that are open in this process."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def backend() -> Backend:
    """The client of the surrounding `async with Perdure(...)`; else the only one that is open on this loop, or in this process.

    A web framework opens its lifespan in one task and runs each request in another, or in a thread, so the context variable is not set
    there.
    """
    found = ambient.get(None)
    if found is not None:
        return found
    loop = running_loop()
    here = [one for one in _open if one.loop is loop] or _open
    if len(here) == 1:
        return here[0]
    if here:
        raise PerdureError(
            f"{len(here)} Perdure clients are open here and this code runs inside the `async with` of none: "
            "use the methods of the client you mean, or open it around this code"
        )
    raise PerdureError(
        "no Perdure client here: wrap the code in `async with Perdure():` (or TestEnv), or use the methods of a client you hold"
    )
