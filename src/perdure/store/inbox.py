"""Messages for runs on PostgreSQL: sent one by one, or many at once over a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from asyncpg import exceptions as pg

from perdure.core.errors import Unavailable
from perdure.core.limits import MESSAGES_PENDING_MAX
from perdure.core.message_limits import limit_error
from perdure.core.messages import Message, kind_of, name_of
from perdure.engine.commits.store import NotCommitted, Poison
from perdure.engine.ports import SendRow
from perdure.store.clashes import CLASH, retried
from perdure.store.connections import TROUBLE
from perdure.store.dedicated import DedicatedConnection
from perdure.store.port import PostgresPort
from perdure.store.queries import fetch_row
from perdure.wire.codec import encode_message


@retried("send_many")
class PostgresInbox(PostgresPort):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._sending = DedicatedConnection(dsn, self._pool)
        self._sending_one = asyncio.Lock()

    async def send(self, run_id: bytes, ns: int, message: Message) -> int | None:
        """The session that owns the run, 0 without an owner; None when there is no such active run."""
        kind, name = kind_of(message), name_of(message)
        row = await self._row("send_message", run_id=run_id, ns=ns, body=encode_message(message), kind=kind, name=name)
        return None if row is None else row["owner"] or 0

    async def send_many(self, rows: Sequence[SendRow]) -> list[int]:
        """An outcome for each, in order; see send_messages. Raises NotCommitted (write it again), Poison or Unavailable.

        On a connection of its own, so that large reads do not delay messages."""
        places: dict[tuple[bytes, int], int] = {}
        messages = [
            (places.setdefault((run_id, ns), len(places) + 1), body, key, named, kind, name)
            for run_id, ns, body, key, named, kind, name in rows
        ]
        try:
            async with self._sending_one:
                connection = await self._sending.get()
                with self._pool.stalls.watched():
                    row = await fetch_row(
                        connection,
                        "send_messages",
                        runs=list(places),
                        messages=messages,
                        pending_max=MESSAGES_PENDING_MAX,
                    )
                    await self._sending.await_standby()
        except (pg.UniqueViolationError, *CLASH) as e:
            raise NotCommitted(str(e)) from e
        except TROUBLE as e:
            self._sending.drop()
            raise Unavailable(f"the database is away: {e or type(e).__name__}") from e
        except asyncio.CancelledError:
            self._sending.drop()
            raise
        except (pg.PostgresError, ValueError, OverflowError, TypeError) as e:
            raise Poison(f"{type(e).__name__}: {e}") from e
        outcomes: list[int] = row["outcomes"]
        return outcomes

    async def remember_message(self, run_id: bytes, key: str) -> None:
        await self._fetch("insert_message_key", run_id=run_id, key=key)

    async def resolve_promise(
        self, run_id: bytes, ns: int, name: str, body: bytes, *, authorized: bool, question: bytes = b""
    ) -> tuple[bool, bool]:
        row = await self._row(
            "resolve_promise",
            run_id=run_id,
            ns=ns,
            name=name,
            body=body,
            authorized=authorized,
            question=question,
            pending_max=MESSAGES_PENDING_MAX,
        )
        if (refusal := limit_error(row["outcome"], run_id, name)) is not None:
            raise refusal
        return row["active"], row["won"]
