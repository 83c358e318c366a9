"""A TCP proxy that reads just enough of PostgreSQL's protocol to lose commits: the request, or only its answer.

A client message is a type byte and a length; a commit is a Parse that names the commit statement's prepared text, or the simple
query COMMIT. Engines prepare the commit statement once per connection, so the proxy remembers under which name.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

COMMIT_STATEMENT = b"insert into perdure.commit_log (session_id, n) select id"


class Proxy:
    """Listens on loopback. `choose` is asked at each commit: "pass", "lose_request" or "lose_answer"."""

    def __init__(self, dsn: str, choose: Callable[[], str], *, engines_only: bool = False) -> None:
        """`engines_only`: of transactions, only those with the commit statement of an engine count."""
        parts = urlsplit(dsn)
        self._parts, self._choose, self.engines_only = parts, choose, engines_only
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.lost: dict[str, int] = {"lose_request": 0, "lose_answer": 0}
        self.commits = 0

    @property
    def dsn(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{port}")) + "?sslmode=disable"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for one in list(self._connections):
            one.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._connections.add(me)
        try:
            await _Link(self, reader, writer).run(self._parts.hostname or "", self._parts.port or 5432)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(me)
            writer.close()

    def fate(self) -> str:
        self.commits += 1
        return self._choose()


class _Link:
    """One client connection and the server connection behind it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._commit_names: set[bytes] = set()
        self._is_engines = False
        """The open transaction has executed the commit statement."""
        self._swallow = False
        """The answer to what was just sent is not passed on; when it is complete the connection ends."""

    async def run(self, host: str, port: int) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, port)
        try:
            size = await self._reader.readexactly(4)  # the startup message has no type byte
            server_writer.write(size + await self._reader.readexactly(int.from_bytes(size, "big") - 4))
            up = asyncio.create_task(self._requests(server_writer))
            down = asyncio.create_task(self._answers(server_reader))
            done, rest = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for one in rest:
                one.cancel()
            await asyncio.gather(*done, *rest, return_exceptions=True)
        finally:
            server_writer.close()

    async def _requests(self, server: asyncio.StreamWriter) -> None:
        in_transaction = False
        while (message := await _message(self._reader)) is not None:
            kind, body = message
            if self._is_commit(kind, body, in_transaction):
                fate = self._proxy.fate()
                if fate != "pass":
                    self._proxy.lost[fate] += 1
                if fate == "lose_request":
                    return
                self._swallow = fate == "lose_answer"
            if kind == b"Q":
                in_transaction = body.upper().startswith(b"BEGIN")
                self._is_engines = False
            server.write(_frame(kind, body))

    def _is_commit(self, kind: bytes, body: bytes, in_transaction: bool) -> bool:
        """Whether this message makes a commit durable: the statement itself outside a transaction, else its COMMIT."""
        if kind == b"P":
            name, _, text = body.partition(b"\x00")
            if COMMIT_STATEMENT in text:
                self._commit_names.add(name)
        elif kind == b"B":
            statement = body.split(b"\x00", 2)[1]
            self._is_engines |= statement in self._commit_names
            return statement in self._commit_names and not in_transaction
        elif kind == b"Q":
            counts = self._is_engines or not self._proxy.engines_only
            return in_transaction and counts and body.upper().startswith(b"COMMIT")
        return False

    async def _answers(self, server: asyncio.StreamReader) -> None:
        while (message := await _message(server)) is not None:
            kind, body = message
            if self._swallow:
                if kind == b"Z":  # ReadyForQuery: the server has done it
                    return
                continue
            self._writer.write(_frame(kind, body))


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """None when the other side is gone."""
    try:
        head = await reader.readexactly(5)
        return head[:1], await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
    except (OSError, EOFError):
        return None


def _frame(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def chances(randomness: random.Random, share: float, calm: Callable[[], bool]) -> Callable[[], str]:
    """Lose this share of commits, half of them before and half after they happened, until `calm`."""

    def choose() -> str:
        if calm() or randomness.random() >= share:
            return "pass"
        return randomness.choice(["lose_request", "lose_answer"])

    return choose
