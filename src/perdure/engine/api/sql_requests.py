"""Acts that programs ask for in SQL, in transactions of their own: perdure.start, perdure.signal and perdure.emit.

    caller's transaction: row in sql_request --commit--> any engine: the act, and the row goes

Laws:

1. A start is carried out in one transaction: the row goes and the run comes, under the id that the caller was answered.
2. A signal and an event are sent under a key of their row, or their own, and then the row goes. An engine that dies in between leaves the row,
   and the act that is asked again under its key has no second effect.
3. Requests are carried out in the order of their rows, as far as one engine claims them. A signal to a run whose start is still a row waits.
4. What cannot be carried out stays with its error, and stands in the way of nothing.
5. A request that is claimed again is claimed alone. So the death of an engine counts against the request that it was carrying out, and requests that
   wait behind it are never given up, however often engines die.
"""

from __future__ import annotations

import logging
import random
from math import inf
from time import monotonic
from typing import Final

import msgspec

from perdure.core import ids
from perdure.core.access import Principal, Role
from perdure.core.api import messages, named_events
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.messages import SendSignal
from perdure.core.api.named_events import EmitEvent
from perdure.core.application_limits import SQL_REQUEST_TRIES_MAX, SQL_REQUESTS_KEPT_S
from perdure.core.attributes import start_attributes
from perdure.core.errors import NotFound, PerdureError, RunFinished, Unavailable, clip
from perdure.core.work import StartRequest
from perdure.engine.api.api import Api, Caller, NamespaceApi
from perdure.engine.api.sql_request_port import SqlRequest
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

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
        self._api, self._store = api, api.ports.sql_requests
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
        try:
            if one.tries > SQL_REQUEST_TRIES_MAX:  # engines died of it, and of nothing else
                await self._failed(one, f"it was tried {SQL_REQUEST_TRIES_MAX} times")
                return
            match one.act:
                case "start":
                    await self._start(one)
                case "signal":
                    await self._signal(one)
                case _:
                    await self._emit(one)
        except Unavailable:
            raise
        except PerdureError as e:
            await self._failed(one, str(e))
        except Exception as e:  # its row stays, and is due again in a moment; the others must not wait for it
            log.exception("request %d in SQL, %s %s, failed", one.id, one.act, one.name)
            if one.tries == SQL_REQUEST_TRIES_MAX:
                await self._failed(one, f"{type(e).__name__}: {e}")

    async def _start(self, one: SqlRequest) -> None:
        assert one.run_id is not None
        engine, options = self._api.engine, msgspec.json.decode(one.options)
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
        return NamespaceApi(self._api, one.ns, Caller(principal, one.namespace, "sdk"))

    async def _failed(self, one: SqlRequest, why: str) -> None:
        log.warning("request %d in SQL, %s %s, cannot be carried out: %s", one.id, one.act, one.name, why)
        await self._store.fail(one.id, clip(why))
