"""/livez, /readyz and /metrics: what a supervisor, a load balancer and Prometheus ask. No credential: bind them where only those are.

Live means that the event loop turns; a process that does not answer is restarted. Ready means that this server can take work now;
one that is not is left alone until it is, with the reasons in its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perdure.engine.engine import Engine
from perdure.server.metrics import Metrics, ObservedStore

DATABASE_S_MAX: Final = 1.0
"""A database that takes longer to answer a ping counts as away."""


class Health:
    def __init__(self, engine: Engine, store: ObservedStore, draining: Callable[[], bool]) -> None:
        self._engine, self._store, self._draining = engine, store, draining

    async def reasons(self) -> list[str]:
        """Why this server is not ready; empty when it is."""
        found: list[str] = []
        if self._draining() or not self._engine.claimer.may_claim:
            found.append("draining: this server finishes what it has and takes nothing new")
        if self._engine.session == 0:
            found.append("no session: this engine was taken for dead and is registering anew")
        try:
            async with asyncio.timeout(DATABASE_S_MAX):
                await self._store.ping()
        except TimeoutError:
            found.append(f"database: no answer within {DATABASE_S_MAX:g} s")
        except Exception as e:
            found.append(f"database: {e or type(e).__name__}")
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
