"""Queries that connected workers compute: which worker was asked, and the callers that wait for its answer.

Law: an answer counts only from the stream that was given the query. A worker whose stream ends has answered nothing, and is not asked again by
itself: a query that ends its process would end one worker after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.core.errors import Unavailable
from perdure.core.work import QueryAnswer, QueryCall
from perdure.engine.ports import CodeKey
from perdure.server.grpc.connection import Connection
from perdure.server.grpc.pools import WorkerPools


class RemoteQueries:
    def __init__(self, pools: WorkerPools) -> None:
        self._pools = pools
        self._asked: dict[int, tuple[Connection, asyncio.Future[QueryAnswer]]] = {}
        self._number = 0

    def ask(self, code: CodeKey, call: QueryCall) -> asyncio.Future[QueryAnswer] | None:
        """None when no worker with this version of the workflow is connected. The caller bounds how long it waits, and cancels."""
        c = self._pools.next_with_code(code)
        if c is None:
            return None
        self._number += 1
        number = self._number
        future: asyncio.Future[QueryAnswer] = asyncio.get_running_loop().create_future()
        self._asked[number] = (c, future)
        c.query(number, call)
        future.add_done_callback(lambda _: self._over(number))
        return future

    def _over(self, number: int) -> None:
        c, _ = self._asked.pop(number)
        c.drop_query(number)

    def answered(self, c: Connection, answers: Sequence[tuple[int, QueryAnswer]]) -> int:
        """How many of them are refused: they come from another worker than the one that was asked. Late ones are dropped."""
        refused = 0
        for number, answer in answers:
            asked = self._asked.get(number)
            if asked is None:
                continue
            if asked[0] is not c:
                refused += 1
            elif not asked[1].done():
                asked[1].set_result(answer)
        return refused

    def release(self, c: Connection) -> None:
        """Its stream has ended."""
        gone = Unavailable(f"the worker {c.name} that computed the query has disconnected; ask again").to_failure()
        for worker, future in list(self._asked.values()):
            if worker is c and not future.done():
                future.set_result(QueryAnswer(b"", gone))
