"""A connection for one purpose, so that other statements do not delay it."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import Unavailable
from perdure.store import arrays
from perdure.store.connections import Connections, connect, shift_clock
from perdure.store.queries import execute


class DedicatedConnection:
    """Opened when it is needed, and again after it was dropped. Sends arrays only of the types that arrays.py packs."""

    def __init__(self, dsn: str, pool: Connections) -> None:
        self._dsn, self._pool = dsn, pool
        self.connection: Any = None
        self._warned = False

    async def get(self) -> Any:
        if self.connection is None or self.connection.is_closed():
            self.connection = await self._connect()
            arrays.install(self.connection)
        if self._pool.clock_offset_s:
            await shift_clock(self.connection, self._pool.clock_offset_s)
        return self.connection

    async def _connect(self) -> Any:
        try:
            made = await connect(self._dsn)
        except Unavailable:
            self._pool.reached(False)
            raise
        self._pool.reached(True)
        made.add_log_listener(self._heard)
        return made

    def _heard(self, _: Any, message: Any) -> None:
        self._warned = self._warned or message.severity_en == "WARNING"

    async def await_standby(self) -> None:
        """Call this after a COMMIT. If an administrator cancels the wait for a synchronous standby, the server answers with success and a
        warning, though the transaction may be on no standby. Then another one is written behind it, and its COMMIT waits for both."""
        while self._warned:
            self._warned = False
            await execute(self.connection, "write_behind")

    def drop(self) -> None:
        self._warned = False
        if self.connection is not None:
            self.connection.terminate()
            self.connection = None
