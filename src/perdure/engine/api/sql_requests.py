"""Acts that programs ask for in SQL, in transactions of their own: perdure.start, perdure.signal and perdure.emit.

    caller's transaction: row in sql_request --commit--> any engine: the act, and the row goes

Laws:

1. A start is carried out in one transaction: the row goes and the run comes, under the id that the caller was answered. A caller that
   names the run before that has it carried out at once (engine/api/sql_starts.py).
2. A signal and an event are sent under a key of their row, or their own, and then the row goes. An engine that dies in between leaves the row,
   and the act that is asked again under its key has no second effect.
3. Requests are carried out in the order of their rows, as far as one engine claims them. A signal to a run whose start is still a row waits.
4. What cannot be carried out stays with its error, and stands in the way of nothing.
5. A request that is claimed again is claimed alone. So the death of an engine counts against the request that it was carrying out, and requests that
   wait behind it are never given up, however often engines die.
"""

from __future__ import annotations

import random
from math import inf
from time import monotonic
from typing import Final

from perdure.core import ids
from perdure.core.access import Principal, Role
from perdure.core.api import messages, named_events
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.messages import SendSignal
from perdure.core.api.named_events import EmitEvent
from perdure.core.application_limits import SQL_REQUESTS_KEPT_S
from perdure.core.errors import NotFound, RunFinished
from perdure.engine.api.api import Api, Caller, NamespaceApi
from perdure.engine.api.sql_request_port import SqlRequest
from perdure.engine.services.service import Service

TAKEN_MAX: Final = 200
"""Requests that are claimed at a time."""
BUSY_POLL_S: Final = 0.2
BUSY_FOR_S: Final = 60.0
"""After a request the next ones are looked for more often, for this long."""
START_WAIT_S: Final = 0.2
"""Before a signal is tried again whose run another engine is about to start."""
TRIM_EVERY_S: Final = 600.0
TRIM_ROWS: Final = 1_000


class SqlRequests(Service):
    name = "carrying out requests in SQL"
    poll_s = 1.0

    def __init__(self, api: Api) -> None:
        super().__init__()
        self._api, self._store, self._starts = api, api.ports.sql_requests, api.sql_starts
        self._trim_at_s = monotonic() + TRIM_EVERY_S * random.random()
        self._busy_until_s = -inf

    async def poll_once(self) -> float | None:
        while taken := await self._store.take(TAKEN_MAX):
            self._busy_until_s = monotonic() + BUSY_FOR_S
            for one in taken:
                await self._carry_out(one)
        if monotonic() >= self._trim_at_s:
            self._trim_at_s = monotonic() + TRIM_EVERY_S * random.uniform(0.75, 1.25)
            await self._store.trim(SQL_REQUESTS_KEPT_S, TRIM_ROWS)
        return BUSY_POLL_S if monotonic() < self._busy_until_s else None

    async def _carry_out(self, one: SqlRequest) -> None:
        acts = {"start": self._starts.carry_out, "signal": self._signal}
        await self._starts.settle(one, acts.get(one.act, self._emit))

    async def _signal(self, one: SqlRequest) -> None:
        run = f"{KEY_PREFIX}{one.run_key}" if one.run_id is None else ids.text(one.run_id)
        message = SendSignal(run, one.name, one.payload.encode(), one.key or f"sql:{one.id}")
        api = self._of(one)
        try:
            await api.call(messages.SIGNAL, message)
        except (NotFound, RunFinished):
            if await self._store.has_start(one.ns, one.run_id, one.run_key):
                await self._store.delay(one.id, START_WAIT_S)
                return
            # Another engine may have carried out the start between the two looks: then the run is there now.
            await api.call(messages.SIGNAL, message)
        await self._store.done(one.id)

    async def _emit(self, one: SqlRequest) -> None:
        event = EmitEvent(one.name, one.payload.encode(), one.key or f"sql:{one.id}")
        await self._of(one).call(named_events.EMIT, event)
        await self._store.done(one.id)

    def _of(self, one: SqlRequest) -> NamespaceApi:
        principal = Principal(subject=f"sql:{one.by}", role=Role.ADMIN)
        # A signal whose run another engine is about to start must not hold up the requests behind it.
        return NamespaceApi(self._api, one.ns, Caller(principal, one.namespace, "sdk"), begins_starts=False)
