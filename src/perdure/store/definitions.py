"""The Registry port on PostgreSQL: names of workflows and namespaces, and requests that may arrive twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.core.api.schedules import ScheduleRequest
from perdure.core.declared import split
from perdure.core.errors import Conflict
from perdure.engine.api.ports import Deployment, Remembered, SentOnce
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.port import PostgresPort
from perdure.store.queries import fetch_row
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
class PostgresDefinitions(PostgresPort):
    def __init__(self, database: str | Connections) -> None:
        super().__init__(database)
        self._requests = 0

    async def register(self, ns: int, name: str, version: str, description: str | None) -> bool:
        row = await self._row("register_workflow", ns=ns, workflow=name, version=version, description=description)
        return bool(row["added"])

    async def deploy(self, ns: int, deployment: Deployment) -> bool:
        """The schedules of a flow change with it: both or neither."""
        async with self._pool.take() as c, c.transaction():
            row = await fetch_row(
                c,
                "deploy_workflow",
                ns=ns,
                workflow=deployment.name,
                version=deployment.version,
                kind=deployment.kind,
                description=deployment.description,
                document=deployment.document.decode(),
                source=deployment.source,
                activate=deployment.activate,
                control=deployment.control.decode() if deployment.control is not None else None,
                timeout_us=deployment.timeout_us or None,
            )
            found = await fetch_row(c, "current_versions", ns=ns, names=[deployment.name])
            if found["current"] == deployment.version:
                await replace_triggers(c, ns, deployment.name, deployment.triggers, deployment.by)
        return bool(row["added"])

    async def activate(
        self, ns: int, name: str, version: str, *, triggers: Sequence[ScheduleRequest] = (), by: str = ""
    ) -> bool:
        async with self._pool.take() as c, c.transaction():
            if await fetch_row(c, "set_current_version", ns=ns, name=name, version=version) is None:
                return False
            await replace_triggers(c, ns, name, triggers, by)
            return True

    async def save_task_types(self, ns: int, signatures: dict[str, bytes]) -> None:
        parts = {name: split(signature) for name, signature in sorted(signatures.items())}
        types = [
            (name, schema.decode(), options.decode() if options else None) for name, (schema, options) in parts.items()
        ]
        await self._execute("save_task_types", ns=ns, types=types)

    async def task_types(self, ns: int) -> dict[str, bytes]:
        rows = await self._fetch("task_types", ns=ns, limit=TASK_TYPES_MAX)
        return {r["name"]: r["signature"].encode() for r in rows}

    async def delete(self, ns: int, name: str) -> bool:
        async with self._pool.take() as c, c.transaction():
            if await fetch_row(c, "delete_workflow", ns=ns, name=name) is None:
                return False
            await replace_triggers(c, ns, name, (), "")
            return True

    async def create_namespace(self, name: str) -> bool:
        return await self._row("open_namespace", name=name) is not None

    async def delete_namespace(self, name: str) -> bool:
        return await self._row("close_namespace", name=name) is not None

    async def remember(self, ns: int, key: str, digest: bytes) -> Remembered:
        await self._sweep()
        for _ in range(TRIES):
            row = await self._row("insert_request", ns=ns, key=key, hash=digest)
            if row["hash"] is not None:
                return Remembered(row["first"], row["hash"])
        raise Conflict(f"the idempotency key {key!r} is in use by another request at this moment; try again")

    async def send_once(self, ns: int, key: str, digest: bytes, run_id: bytes, body: bytes) -> SentOnce:
        await self._sweep()
        for _ in range(TRIES):
            row = await self._row("send_message_once", ns=ns, key=key, hash=digest, run_id=run_id, body=body)
            if row["hash"] is not None or not row["active"]:
                return SentOnce(row["active"], row["sent"], row["hash"])
        raise Conflict(f"the idempotency key {key!r} is in use by another request at this moment; try again")

    async def _sweep(self) -> None:
        self._requests += 1
        if self._requests % SWEEP_EVERY == 0:
            await self._row("delete_old_requests", age_s=KEPT_S, limit=SWEEP_ROWS)
