"""The port of HTTP services on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.api.services import OFFLINE, ONLINE, CallEnd, InstanceItem, RegisterInstance
from perdure.core.errors import Conflict
from perdure.core.limits import SERVICE_INSTANCES_MAX
from perdure.engine.api.ports import CallbackPhase
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort


@retried()
class PostgresServices(PostgresPort):
    async def register(self, ns: int, new: RegisterInstance) -> tuple[InstanceItem, bool]:
        row = await self._row(
            "register_instance",
            ns=ns,
            id=new.id,
            url=new.url,
            services=new.services,
            load=new.load,
            instances_max=SERVICE_INSTANCES_MAX,
        )
        if row is None:
            raise Conflict(
                f"this namespace has SERVICE_INSTANCES_MAX={SERVICE_INSTANCES_MAX} instances of services; "
                "those without a heartbeat are removed after a day"
            )
        return _instance(row), row["is_changed"]

    async def heartbeat(self, ns: int, id: str, url: str, load: float | None) -> str | None:
        row = await self._row("instance_heartbeat", ns=ns, id=id, url=url, load=load)
        return None if row is None else row["id"]

    async def instances(
        self, ns: int, service: str, ttl_s: float, *, only_online: bool, after: str = "", limit: int
    ) -> list[InstanceItem]:
        rows = await self._fetch(
            "list_instances",
            ns=ns,
            service=service,
            ttl_s=float(ttl_s),
            only_online=only_online,
            after=after,
            limit=limit,
        )
        return [_instance(r) for r in rows]

    async def callback(self, ns: int, job: str) -> tuple[CallbackPhase, CallEnd | None] | None:
        row = await self._row("find_callback", ns=ns, job=job)
        if row is None:
            return None
        return row["phase"], _end(job, row) if row["phase"] == "ended" else None

    async def accept(self, ns: int, jobs: Sequence[str]) -> None:
        await self._execute("accept_callbacks", ns=ns, jobs=list(jobs))

    async def end(self, ns: int, end: CallEnd) -> tuple[CallbackPhase | None, bool]:
        row = await self._row("end_callback", ns=ns, job=end.job, result=end.result, error=end.error)
        return row["before"], row["is_recorded"]

    async def ended(self, ns: int, jobs: Sequence[str]) -> list[CallEnd]:
        return [_end(r["job"], r) for r in await self._fetch("ended_callbacks", ns=ns, jobs=list(jobs))]

    async def close_callbacks(self, ns: int, jobs: Sequence[str]) -> None:
        await self._execute("close_callbacks", ns=ns, jobs=list(jobs))


def _instance(row: Any) -> InstanceItem:
    return InstanceItem(
        id=row["id"],
        url=row["url"],
        services=list(row["services"]),
        load=row["load"],
        registered_us=row["registered_at"],
        heartbeat_us=row["heartbeat_at"],
        status=ONLINE if row["is_online"] else OFFLINE,
    )


def _end(job: str, row: Any) -> CallEnd:
    return CallEnd(job, row["result"] or b"null", row["error"] or "")
