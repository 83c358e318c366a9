"""The Registry port on PostgreSQL: names of workflows and namespaces, and requests that may arrive twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core.api.schedules import ScheduleRequest
from perdure.core.declared import split
from perdure.core.errors import Conflict
from perdure.engine.api.ports import Deployment, Posted, Remembered
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.queries import queries
from perdure.store.schedules import replace_triggers

KEPT_S: Final = 7 * 86_400.0
"""How long an idempotency key is remembered."""
SWEEP_EVERY: Final = 500
"""Requests between two sweeps of old keys."""
SWEEP_ROWS: Final = 2_000
TASK_TYPES_MAX: Final = 2_000
"""Tasks that the schema for editors names."""
TRIES: Final = 5


@retried()
class PostgresRegistry:
    def __init__(self, database: str | Connections) -> None:
        """`database` is a DSN, or a pool that somebody else opens and closes."""
        self._q = queries()
        self._pool = Connections(database) if isinstance(database, str) else database
        self._requests = 0

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def _row(self, name: str, *args: Any) -> Any:
        async with self._pool.take() as c:
            return await c.fetchrow(self._q[name], *args)

    async def register(self, ns: int, name: str, version: str, kind: str, description: str | None) -> bool:
        row = await self._row("register_workflow", ns, name, version, kind, description)
        return bool(row["added"])

    async def deploy(self, ns: int, deployment: Deployment) -> bool:
        """The schedules of a flow change with it: both or neither."""
        async with self._pool.take() as c, c.transaction():
            row = await c.fetchrow(
                self._q["deploy_workflow"],
                ns,
                deployment.name,
                deployment.version,
                deployment.kind,
                deployment.description,
                deployment.document.decode(),
                deployment.source,
                deployment.activate,
                deployment.control.decode() if deployment.control is not None else None,
                deployment.timeout_us or None,
            )
            found = await c.fetchrow(self._q["current_versions"], ns, [deployment.name])
            if found["current"] == deployment.version:
                await replace_triggers(c, ns, deployment.name, deployment.triggers, deployment.by)
        return bool(row["added"])

    async def activate(
        self, ns: int, name: str, version: str, *, triggers: Sequence[ScheduleRequest] = (), by: str = ""
    ) -> bool:
        async with self._pool.take() as c, c.transaction():
            if await c.fetchrow(self._q["move_workflow"], ns, name, version) is None:
                return False
            await replace_triggers(c, ns, name, triggers, by)
            return True

    async def save_task_types(self, ns: int, signatures: dict[str, bytes]) -> None:
        names = sorted(signatures)
        parts = [split(signatures[n]) for n in names]
        schemas, options = (
            [schema.decode() for schema, _ in parts],
            [said.decode() if said else None for _, said in parts],
        )
        async with self._pool.take() as c:
            await c.fetch(self._q["save_task_types"], ns, names, schemas, options)

    async def task_types(self, ns: int) -> dict[str, bytes]:
        async with self._pool.take() as c:
            rows = await c.fetch(self._q["task_types"], ns, TASK_TYPES_MAX)
        return {r["name"]: r["signature"].encode() for r in rows}

    async def delete(self, ns: int, name: str) -> bool:
        async with self._pool.take() as c, c.transaction():
            if await c.fetchrow(self._q["delete_workflow"], ns, name) is None:
                return False
            await replace_triggers(c, ns, name, (), "")
            return True

    async def create_namespace(self, name: str) -> bool:
        return await self._row("open_namespace", name) is not None

    async def delete_namespace(self, name: str) -> bool:
        return await self._row("close_namespace", name) is not None

    async def remember(self, ns: int, key: str, digest: bytes) -> Remembered:
        await self._sweep()
        for _ in range(TRIES):
            row = await self._row("remember_request", ns, key, digest)
            if row["hash"] is not None:
                return Remembered(row["first"], row["hash"])
        raise Conflict(f"the idempotency key {key!r} is in use by another request at this moment; try again")

    async def post_once(self, ns: int, key: str, digest: bytes, run_id: bytes, body: bytes) -> Posted:
        await self._sweep()
        for _ in range(TRIES):
            row = await self._row("post_once", ns, key, digest, run_id, body)
            if row["hash"] is not None or not row["active"]:
                return Posted(row["active"], row["sent"], row["hash"])
        raise Conflict(f"the idempotency key {key!r} is in use by another request at this moment; try again")

    async def _sweep(self) -> None:
        self._requests += 1
        if self._requests % SWEEP_EVERY == 0:
            await self._row("forget_requests", KEPT_S, SWEEP_ROWS)
