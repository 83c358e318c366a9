"""The Registry port on PostgreSQL: names of workflows and namespaces, and requests that may arrive twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from perdure.core.api.schedules import ScheduleRequest
from perdure.core.api.versions import VersionUse, WorkflowVersions
from perdure.core.declared import split
from perdure.core.errors import Conflict
from perdure.core.limits import MESSAGES_PENDING_MAX
from perdure.core.message_limits import limit_error
from perdure.core.messages import SignalMessage
from perdure.core.subscriptions import events_of
from perdure.engine.api.ports import Deployment, Remembered, SentOnce
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.port import PostgresPort
from perdure.store.queries import fetch_row
from perdure.store.schedules import replace_triggers
from perdure.wire.codec import encode_message

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
                hooks=json.dumps(dict(deployment.hooks)) if deployment.hooks else None,
                subscriptions=deployment.subscriptions.decode() or None,
                on_events=events_of(deployment.subscriptions),
            )
            found = await fetch_row(c, "current_versions", ns=ns, names=[deployment.name])
            if found["current"] == deployment.version:
                await replace_triggers(c, ns, deployment.name, deployment.triggers, deployment.by)
        return bool(row["added"])

    async def set_current(
        self,
        ns: int,
        name: str,
        version: str,
        *,
        triggers: Sequence[ScheduleRequest] = (),
        by: str = "",
        rollback: bool = False,
        automatic: bool = False,
    ) -> bool:
        async with self._pool.take() as c, c.transaction():
            found = await fetch_row(
                c, "set_current_version", ns=ns, name=name, version=version, rollback=rollback, automatic=automatic
            )
            if found is None:
                return False
            await replace_triggers(c, ns, name, triggers, by)
            return True

    async def set_ramp(self, ns: int, name: str, version: str | None, percent: float) -> bool:
        return await self._row("set_ramp", ns=ns, name=name, version=version, percent=percent) is not None

    async def newest_served(self, ns: int, name: str) -> str | None:
        row = await self._row("newest_served", ns=ns, name=name)
        return row["version"] if row is not None else None

    async def versions(self, ns: int, name: str, limit: int, count_max: int) -> WorkflowVersions | None:
        state = await self._row("version_state", ns=ns, name=name)
        if state is None:
            return None
        rows = await self._fetch("count_versions", ns=ns, workflow=name, limit=limit, count_max=count_max)
        return WorkflowVersions(
            name=state["name"],
            kind=state["kind"],
            current=state["current"],
            previous=state["previous"],
            ramp=state["ramp"],
            ramp_percent=state["ramp_percent"],
            by_hand=state["by_hand"],
            versions=[
                VersionUse(
                    version=r["version"],
                    kind=r["kind"],
                    hash=r["hash"],
                    build_id=r["build_id"],
                    pinned=r["pinned"],
                    registered_us=r["registered_at"],
                    seen_us=r["seen_at"],
                    workers=r["workers"],
                    runs_pinned=r["runs_pinned"],
                    runs_other=r["runs_loose"],
                    is_current=False,
                    can_drain=False,
                )
                for r in rows
            ],
        )

    async def move_runs(self, ns: int, name: str, version: str, to: str, limit: int) -> int:
        return len(await self._fetch("move_runs", ns=ns, workflow=name, version=version, to=to, limit=limit))

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

    async def send_once(self, ns: int, key: str, digest: bytes, run_id: bytes, message: SignalMessage) -> SentOnce:
        await self._sweep()
        body = encode_message(message)
        for _ in range(TRIES):
            row = await self._row(
                "send_message_once",
                ns=ns,
                key=key,
                hash=digest,
                run_id=run_id,
                name=message.name,
                body=body,
                pending_max=MESSAGES_PENDING_MAX,
            )
            if row["hash"] is None and (refusal := limit_error(row["outcome"], run_id, message.name)) is not None:
                raise refusal
            if row["hash"] is not None or not row["active"]:
                return SentOnce(row["active"], row["sent"], row["hash"])
        raise Conflict(f"the idempotency key {key!r} is in use by another request at this moment; try again")

    async def _sweep(self) -> None:
        self._requests += 1
        if self._requests % SWEEP_EVERY == 0:
            await self._row("delete_old_requests", age_s=KEPT_S, limit=SWEEP_ROWS)
