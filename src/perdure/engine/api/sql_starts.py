"""Starts that programs asked for in SQL: carried out in turn by engine/api/sql_requests.py, or at once for a caller that names the run.

    no such run -> its request? -> claimed here  -> carried out -> the caller's act again
                                -> claimed there -> looked at again, until it is carried out or the caller's time is over
                                -> failed, or due later: the caller gets the reason

Laws:

1. A start is carried out in one transaction: the row goes and the run comes. One statement sees the row, or the run, or that there is neither.
2. A row is claimed alone and like all others: its lease and its tries count, so a start that engines die of is given up as usual.
3. A delayed start never begins early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec

from perdure.core import ids
from perdure.core.application_limits import SQL_REQUEST_TRIES_MAX
from perdure.core.attributes import start_attributes
from perdure.core.errors import NotFound, PerdureError, Unavailable, clip
from perdure.core.notifications import moment_text
from perdure.core.work import StartRequest
from perdure.engine.api.sql_request_port import RequestedStart, SqlRequest, SqlRequestStore
from perdure.engine.engine import Engine

log = logging.getLogger("perdure.engine")

BEGIN_WAIT_S: Final = 10.0
"""How long a caller waits for a start that another engine has claimed: longer than the lease, in case that engine died."""
PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 0.2


class SqlStarts:
    def __init__(self, engine: Engine, store: SqlRequestStore) -> None:
        self._engine, self._store = engine, store

    async def begin(self, ns: int, run_id: bytes | None, key: str | None, within_s: float) -> bool:
        """Whether there is such a run now. False: no committed transaction asked for it in SQL.

        NotFound with the reason when its start failed or is due later. Unavailable when another engine takes too long.
        """
        due_s, pause_s = monotonic() + min(within_s, BEGIN_WAIT_S), PAUSE_S_MIN
        while True:
            look = await self._store.find_start(ns, run_id, key)
            start = look.start
            if start is None or look.has_run:
                return look.has_run
            _check_begins(start)
            if start.is_due and (claimed := await self._store.claim_start(start.id)) is not None:
                await self.settle(claimed, self.carry_out)  # the next look finds the run or the error
                continue
            if monotonic() + pause_s > due_s:
                raise Unavailable(
                    f"run {ids.text(start.run_id)} hasn't begun yet: another engine is carrying out its start. Try again."
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def carry_out(self, one: SqlRequest) -> None:
        assert one.run_id is not None
        engine, options = self._engine, msgspec.json.decode(one.options)
        request = StartRequest(
            workflow=one.name,
            version="",
            input=one.payload.encode(),
            key=one.key or "",
            timeout_us=options.get("timeout_us", 0),
            attributes=start_attributes(options["attributes"]) if options.get("attributes") else b"",
        )
        run = await engine.new_runs.make(one.run_id, one.ns, request)
        version = (one.ns, one.name, run.version)
        if not engine.flows.knows_input(version):
            await engine.flows.find_input(version)
        engine.flows.check_input(version, request.input)
        if await self._store.begin(one.id, run):
            engine.events.runs_begun.publish(1)

    async def settle(self, one: SqlRequest, act: Callable[[SqlRequest], Awaitable[None]]) -> None:
        """Carry out a claimed request of any kind. Its row goes, or stays with its error, or is due again later."""
        try:
            if one.tries > SQL_REQUEST_TRIES_MAX:  # engines died of it, and of nothing else
                await self._fail(one, f"it was tried {SQL_REQUEST_TRIES_MAX} times")
                return
            await act(one)
        except Unavailable:
            raise
        except PerdureError as e:
            await self._fail(one, str(e))
        except Exception as e:  # its row stays, and is due again in a moment; the others must not wait for it
            log.exception("request %d in SQL, %s %s, failed", one.id, one.act, one.name)
            if one.tries == SQL_REQUEST_TRIES_MAX:
                await self._fail(one, f"{type(e).__name__}: {e}")

    async def _fail(self, one: SqlRequest, why: str) -> None:
        log.warning("request %d in SQL, %s %s, cannot be carried out: %s", one.id, one.act, one.name, why)
        await self._store.fail(one.id, clip(why))


def _check_begins(start: RequestedStart) -> None:
    """A start that was never claimed and isn't due is a delayed one."""
    run = ids.text(start.run_id)
    if start.error is not None:
        raise NotFound(f"run {run} was not started: {start.error}. Correct the start and request it again.")
    if not start.is_due and not start.tries:
        raise NotFound(f"run {run} begins at {moment_text(start.due_us)}: its start has a delay. Try again after that.")
