"""The session of an engine: registered, renewed, and replaced when it is lost.

    register -> renew every heartbeat_s -> ... -> reaped by another engine when silent for lease_s
        ^                                              |
        '---- forget everything, register anew <-------'   (a write or a renewal finds no session row: `Fenced`)

Laws:

1. An engine whose session is gone owns nothing: its memory is void before it registers anew.
2. A fault in a loop that holds memory of runs is treated as a lost session: the state that it left is given up and read again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from time import monotonic
from typing import Final

from perdure.core.errors import Fenced, Unavailable
from perdure.core.outage import Outage
from perdure.engine.commits.committer import Committer
from perdure.engine.context import EngineContext
from perdure.engine.services.claims import ClaimInDoubt, Claims
from perdure.engine.services.served import ServedDefinitions
from perdure.engine.services.service import Body, keep_running
from perdure.engine.tasks.lost_workers import LostWorkers, settle_lost

log = logging.getLogger("perdure.engine")

COMMITS_KEPT: Final = 10
"""Numbers of past commits whose rows are kept, to settle lost answers."""
REGISTER_PAUSE_S: Final = 0.5
LOOP_PAUSE_S_MAX: Final = 1.0
"""Before a loop that holds memory of runs is tried again."""


class Lease:
    def __init__(
        self,
        context: EngineContext,
        engine: str,
        committer: Committer,
        claims: Claims,
        lost_workers: LostWorkers,
        served: ServedDefinitions,
    ) -> None:
        self._store, self._session, self._settings = context.store, context.session, context.settings
        self._worker, self._clock, self._counters = context.worker, context.clock, context.counters
        self._events = context.events
        self._engine, self._committer, self._claims = engine, committer, claims
        self._lost_workers, self._served = lost_workers, served
        self._rejoining = asyncio.Lock()

    async def register(self) -> None:
        session = await self._store.register(self._engine, self._settings.lease_s, self._worker.slots)
        self._committer.writable()
        self._clock.sync(session.clock_us)
        self._session.begin(session.id)

    async def leave(self) -> None:
        """Hand everything back."""
        try:
            await self._store.leave(self._session.id, settle_lost)
            if self._session.others:
                await self._store.notify("run,task")
        except Unavailable as e:
            log.warning("could not sign off, the lease will run out instead: %s", e)

    async def run(self) -> None:
        """Renew the lease for ever. Raises Fenced when it is lost."""
        while True:
            await asyncio.sleep(self._settings.heartbeat_s * random.uniform(0.8, 1.0))
            await self._renew()
            await self._store.trim_commit_log(self._session.id, self._session.commits - COMMITS_KEPT)
            await self._lost_workers.check_reassigned()
            await self._served.refresh_quietly()

    async def _renew(self) -> None:
        session, worker = self._session.id, self._worker
        renewed = await self._store.renew(session, self._settings.lease_s, worker.slots, worker.slots_free)
        if renewed is None:
            raise Fenced(f"session {session} is gone")
        self._session.renewed(renewed.others, renewed.others_free)
        self._committer.writable()
        self._clock.sync(renewed.clock_us)
        if renewed.expired:
            reaped = await self._store.reap(settle_lost)
            self._counters.sessions_reaped += reaped
            if reaped:
                self._claims.wake()

    async def keep(self, name: str, body: Body) -> None:
        """Restart a loop that holds runs in memory: after outages, and under a new session when the old one is lost."""
        session = 0

        async def run() -> None:
            nonlocal session
            session = self._session.id
            await body()

        async def recover(error: Exception) -> bool:
            if isinstance(error, Fenced):  # before Unavailable, which it is as well
                await self._rejoin(session)
            elif isinstance(error, Unavailable):
                return False
            else:
                if isinstance(error, ClaimInDoubt):
                    log.warning("a claim may have taken effect without an answer; this engine starts over: %s", error)
                else:
                    log.error("%s failed; this engine starts over", name, exc_info=error)
                await self.start_over()
            return True

        await keep_running(name, run, recover, pause_s_max=LOOP_PAUSE_S_MAX)

    async def start_over(self) -> None:
        """Give up the current session. A loop may outlive several sessions."""
        session = self._session.id
        try:
            await self._store.leave(session, settle_lost)
        except Exception as e:
            log.warning("could not sign off, the lease will run out instead: %s", e)
        await self._rejoin(session)

    async def _rejoin(self, lost: int) -> None:
        """The session was reaped. Memory is void; the engine registers a new session."""
        async with self._rejoining:
            if self._session.id != lost:
                return
            self._counters.sessions_fenced += 1
            log.warning("session %d is gone: its runs belong to other engines now; registering anew", lost)
            # No session from here on: results of queries under the old one are ignored.
            self._session.lose()
            self._events.session_lost.publish()
            outage = Outage("registering this engine", log, monotonic)
            while True:
                try:
                    await self.register()
                    break
                except Exception as e:
                    outage.failed(e)
                    await asyncio.sleep(REGISTER_PAUSE_S)
            outage.over()
            self._claims.wake()
