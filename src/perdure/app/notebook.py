"""`await perdure.open()`: a client for the life of a notebook, where an `async with` would end with its cell.

Opening again with the same arguments returns the open client, so that a cell can be run again; with others the open one is closed and replaced.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec

from perdure.app.embedded import Perdure
from perdure.core.errors import PerdureError

P = ParamSpec("P")


class OpenClient:
    """The client of this process, and the loop that it lives on."""

    def __init__(self, client: Perdure, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self.client, self.arguments = client, arguments
        self.loop = asyncio.get_running_loop()

    @property
    def is_lost(self) -> bool:
        """Its loop was closed under it: nothing of it runs any more."""
        return self.loop.is_closed()


_open: list[OpenClient] = []
"""One or none."""


def _as(_: Callable[P, Perdure]) -> Callable[[Callable[..., Any]], Callable[P, Coroutine[Any, Any, Perdure]]]:
    """A function that takes what another takes."""
    return lambda fn: fn


@_as(Perdure)
async def open(*args: Any, **options: Any) -> Perdure:
    """Open an embedded client for the rest of the program, for notebooks and other places with an `await` at the top level.

        perdure = await perdure.open()

    The arguments are those of `Perdure`. It is closed by `await perdure.close()` or when the program ends. Opening again with the same
    arguments returns the open client; with others it replaces it. Raises PerdureError if it is open on another event loop.
    """
    if _open and not _open[0].is_lost:
        found = _open[0]
        if found.loop is not asyncio.get_running_loop():
            raise PerdureError("perdure.open() was called on another event loop; close the client there first")
        if found.arguments == (args, options):
            return found.client
        await close()
    _open.clear()
    client = await Perdure(*args, **options).__aenter__()
    _open.append(OpenClient(client, (args, options)))
    return client


async def close() -> None:
    """Close the client that `perdure.open()` has opened, if there is one."""
    if _open:
        found = _open.pop()
        if not found.is_lost:
            await found.client.__aexit__(None, None, None)


def _at_exit() -> None:
    """Running work is finished or handed back if the loop can still run; else the lease of the engine runs out."""
    if not _open or _open[0].is_lost or _open[0].loop.is_running():
        return
    with suppress(Exception):  # the program ends either way
        _open[0].loop.run_until_complete(close())


atexit.register(_at_exit)
