"""The OutboxStore port on PostgreSQL."""

from __future__ import annotations

import json
from typing import Any

from perdure.core import ids
from perdure.core.api.notifications import NotificationItem, NotificationRule, PutNotificationRule
from perdure.core.application_limits import NOTIFY_RULES_MAX
from perdure.core.errors import Conflict
from perdure.core.notifications import Notice, Status
from perdure.engine.services.new_runs import NewRun
from perdure.engine.services.outbox import Delivery, DueHook, NextNotification
from perdure.store.clashes import retried
from perdure.store.deferred_starts import insert_run
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row


@retried()
class PostgresOutbox(PostgresPort):
    async def next_due(self, full: list[int], *, only_hooks: bool) -> NextNotification:
        row = await self._row("next_notification", full=full, only_hooks=only_hooks)
        return NextNotification(row["clock"], row["has_rules"], row["has_late"], row["due_at"])

    async def claim(self, busy: list[tuple[int, int]], per_rule: int, limit: int, lease_s: float) -> list[Delivery]:
        rows = await self._fetch(
            "claim_notifications", busy=busy, per_rule=per_rule, limit=limit, lease_s=float(lease_s)
        )
        return [_delivery(r) for r in rows]

    async def claim_hooks(self, limit: int, lease_s: float) -> list[DueHook]:
        return [_hook(r) for r in await self._fetch("claim_hooks", limit=limit, lease_s=float(lease_s))]

    async def end(self, n: int, attempts: int, status: Status, error: str | None, delay_us: int) -> bool:
        row = await self._row("end_notification", n=n, attempts=attempts, status=status, error=error, delay_us=delay_us)
        return row is not None

    async def start_hook(self, n: int, attempts: int, run: NewRun) -> bool:
        async with self._pool.take() as c, c.transaction():
            if await fetch_row(c, "start_hook", n=n, attempts=attempts) is None:
                return False
            taken = await fetch_row(
                c, "take_run_key", ns=run.ns, key=run.key, run_id=run.run_id, input_hash=run.key_hash
            )
            if taken is None:
                return False
            await insert_run(c, run)
            return True

    async def note_late(self, limit: int) -> int:
        return int(await self._value("note_late", limit=limit))

    async def sweep(self, kept_s: float, pending_max: int, limit: int) -> dict[int, int]:
        async with self._pool.take() as c:
            await execute(c, "sweep_notifications", kept_s=float(kept_s), limit=limit)
            rows = await fetch(c, "drop_notifications", pending_max=pending_max)
        return {r["rule_id"]: r["count"] for r in rows}

    async def put_rule(
        self, ns: int, new: PutNotificationRule, secret: bytes | None, by: str, *, rotate: bool
    ) -> tuple[NotificationRule, bool]:
        row = await self._row(
            "put_notification_rule",
            ns=ns,
            name=new.name,
            workflows=new.workflows,
            kinds=new.kinds,
            late_after_us=new.late_after_us,
            target=new.target,
            address=new.address,
            secret=secret,
            created_by=by,
            rules_max=NOTIFY_RULES_MAX,
            rotate=rotate,
        )
        if row is None:
            raise Conflict(
                f"this namespace has NOTIFY_RULES_MAX={NOTIFY_RULES_MAX} notification rules; delete one that is not used"
            )
        return _rule(row), row["has_new_secret"]

    async def rules(self, ns: int, after: str, limit: int, name: str | None = None) -> list[NotificationRule]:
        return [_rule(r) for r in await self._fetch("notification_rules", ns=ns, after=after, name=name, limit=limit)]

    async def delete_rule(self, ns: int, name: str) -> bool:
        return await self._row("delete_notification_rule", ns=ns, name=name) is not None

    async def page(
        self, ns: int, rule: str | None, status: str | None, before: int | None, limit: int
    ) -> list[NotificationItem]:
        rows = await self._fetch("notifications", ns=ns, rule=rule, status=status, before=before, limit=limit)
        return [_item(r) for r in rows]

    async def retry(self, ns: int, id: bytes | None, rule: str | None) -> int:
        return len(await self._fetch("retry_notifications", ns=ns, id=id, rule=rule))


def _delivery(row: Any) -> Delivery:
    notice = Notice(
        id=ids.text(row["id"]),
        kind=row["kind"],
        namespace=row["namespace"],
        workflow=row["workflow"],
        rule=row["rule"],
        at_us=row["at"],
        data=json.loads(row["data"]),
        run_id=row["run_id"],
    )
    return Delivery(
        n=row["n"],
        attempts=row["attempts"],
        earlier_attempts=row["earlier_attempts"],
        rule_id=row["rule_id"],
        ns=row["ns"],
        target=row["target"],
        address=row["address"],
        secret=row["secret"],
        notice=notice,
    )


def _hook(row: Any) -> DueHook:
    return DueHook(
        n=row["n"],
        attempts=row["attempts"],
        earlier_attempts=row["earlier_attempts"],
        ns=row["ns"],
        kind=row["kind"],
        run_id=row["run_id"],
        workflow=row["workflow"],
        hook=row["hook"],
        occurrence=row["occurrence"],
        data=json.loads(row["data"]),
    )


def _rule(row: Any) -> NotificationRule:
    return NotificationRule(
        name=row["name"],
        workflows=list(row["workflows"]),
        kinds=list(row["kinds"]),
        target=row["target"],
        address=row["address"],
        late_after_us=row["late_after_us"],
        created_us=row["created_at"],
        created_by=row["created_by"],
        pending=row["pending"],
        dead=row["dead"],
        dropped=row["dropped"],
    )


def _item(row: Any) -> NotificationItem:
    return NotificationItem(
        n=row["n"],
        id=ids.text(row["id"]),
        rule=row["rule"],
        kind=row["kind"],
        workflow=row["workflow"],
        run_id=row["run_id"],
        hook=row["hook"],
        data=json.loads(row["data"]),
        at_us=row["at"],
        status=row["status"],
        attempts=row["attempts"],
        due_us=row["due_at"],
        ended_us=row["ended_at"],
        error=row["error"],
    )
