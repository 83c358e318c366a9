"""/livez, /readyz and /metrics, for supervisors, load balancers and Prometheus. They need no credential: bind them to a private address.

Live means that the event loop runs; a process that does not answer should be restarted. Ready means that this server can take work now;
one that is not should be left alone until it is. Its answer has the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perdure.engine.engine import Engine
from perdure.server.metrics import Metrics, ObservedStore

COMMIT_S_MAX: Final = 2.0
"""A server with something to write is not ready when no commit has succeeded for longer than this."""
RENEWALS_MISSED_MAX: Final = 2
"""A session that missed more renewals than this does not count as alive."""
DATABASE_S_MAX: Final = 1.0
"""A database that takes longer to answer a ping counts as unavailable."""


class Health:
    def __init__(self, engine: Engine, store: ObservedStore, draining: Callable[[], bool]) -> None:
        self._engine, self._store, self._draining = engine, store, draining

    async def reasons(self) -> list[str]:
        """Why this server is not ready; empty when it is."""
        found: list[str] = []
        if self._draining() or self._engine.is_draining:
            found.append("draining: this server finishes its work and takes nothing new")
        if self._engine.session.id == 0:
            found.append("no session: this engine's session expired and it is registering again")
        else:
            found += self._unwritten()
        try:
            async with asyncio.timeout(DATABASE_S_MAX):
                await self._store.ping()
        except TimeoutError:
            found.append(f"database: no answer within {DATABASE_S_MAX:g} s")
        except Exception as e:
            found.append(f"database: {e or type(e).__name__}")
        return found

    def _unwritten(self) -> list[str]:
        """A database may answer and yet refuse writes: its disk is full, or it has become a standby."""
        found: list[str] = []
        failing_s = self._engine.committer.failing_s
        if failing_s > COMMIT_S_MAX:
            found.append(f"commits: none has succeeded for {failing_s:.0f} s; the log of this server says why")
        silent_s = monotonic() - self._engine.session.renewed_s
        if silent_s > (RENEWALS_MISSED_MAX + 1) * self._engine.settings.heartbeat_s:
            found.append(f"heartbeat: the session was last written {silent_s:.0f} s ago")
        return found


def routes(engine: Engine, store: ObservedStore, draining: Callable[[], bool] = lambda: False) -> list[Route]:
    """To be mounted at the root of the server's HTTP application, or of one of their own."""
    health, metrics = Health(engine, store, draining), Metrics(engine, store)

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def readyz(request: Request) -> Response:
        reasons = await health.reasons()
        return JSONResponse(
            {"status": "not ready" if reasons else "ready", "reasons": reasons}, status_code=503 if reasons else 200
        )

    async def scrape(request: Request) -> Response:
        body, content_type = await metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return [
        Route("/livez", livez, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", scrape, methods=["GET"]),
    ]
