"""What a client talks to: the engine in this process, or a server. And how code without a client at hand finds one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from perdure.core.api.act import Act
from perdure.core.errors import PerdureError
from perdure.core.payload_port import PayloadCarrier

Q = TypeVar("Q")
R = TypeVar("R")


class Backend(Protocol):
    def call(self, act: Act[Q, R], request: Q) -> Coroutine[Any, Any, R]:
        """Ask for an act. Raises what the act raises, and Unavailable when there is no answer in time."""
        ...

    @property
    def payloads(self) -> PayloadCarrier:
        """Stored content that payloads refer to."""
        ...

    def adopt(self, definition: Any) -> None:
        """Serve a workflow here, if anything is served here."""
        ...


ambient: ContextVar[Backend] = ContextVar("perdure_client")
_opened: list[tuple[asyncio.AbstractEventLoop, Backend]] = []
"""Clients that are open in this process, each with the loop it belongs to."""


def opened(client: Backend) -> None:
    """From now on code of this loop finds the client, also where the context of its `async with` does not reach."""
    _opened.append((asyncio.get_running_loop(), client))


def closed(client: Backend) -> None:
    _opened[:] = [entry for entry in _opened if entry[1] is not client]


def backend() -> Backend:
    """The client of the surrounding `async with Perdure(...)`; else the only one that is open on this loop.

    A web framework opens its lifespan in one task and runs each request in another, so the context variable is not set there.
    """
    found = ambient.get(None)
    if found is not None:
        return found
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    here = [client for owner, client in _opened if owner is loop]
    if len(here) == 1:
        return here[0]
    if here:
        raise PerdureError(
            f"{len(here)} Perdure clients are open on this event loop and this code runs inside the `async with` of none: "
            "use the methods of the client you mean, or open it around this code"
        )
    raise PerdureError(
        "no Perdure client here: wrap the code in `async with Perdure():` (or TestEnv), or use the methods of a client you hold"
    )
