"""The DeadLetters port on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core.api.dead_letters import DeadLetter, DeadLetterFilter, DeadLetterPage, DeadLetterPosition
from perdure.core.durations import FOREVER_US
from perdure.core.errors import InvalidInput
from perdure.engine.api.ports import SCAN_ROWS_MAX
from perdure.engine.api.run_retry import GENERATIONS_MAX
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort

HIGHEST: Final = b"\xff" * 16


@retried()
class PostgresDeadLetters(PostgresPort):
    async def page(
        self, ns: int, wanted: DeadLetterFilter, below: DeadLetterPosition | None, limit: int
    ) -> DeadLetterPage:
        at_us, task_id = below or (FOREVER_US, HIGHEST)
        if wanted.until_us is not None and wanted.until_us < at_us:  # exclusive: the id that none is below
            at_us, task_id = wanted.until_us, bytes(16)
        if wanted.text and self._pool.codec.encrypts:
            raise InvalidInput(
                "error texts are encrypted in this database, so dead letters cannot be found by them; filter by workflow, queue or task"
            )
        for scan in (min(2 * limit, SCAN_ROWS_MAX), SCAN_ROWS_MAX):  # nearly all match where nothing is filtered
            rows = await self._fetch(
                "dead_letters",
                ns=ns,
                since=wanted.since_us or 0,
                before_at=at_us,
                before_id=task_id,
                scan_limit=scan,
                queue=wanted.queue or None,
                task=wanted.task or None,
                workflow=wanted.workflow or None,
                error_text=wanted.text.lower() or None,
                limit=limit,
            )
            items = [_letter(r) for r in rows if r["id"] is not None]
            if len(items) == limit:
                return DeadLetterPage(items, (items[-1].failed_us, items[-1].task_id))
            if rows[0]["scanned"] < scan:
                return DeadLetterPage(items, None)
        return DeadLetterPage(items, (rows[0]["low_at"], rows[0]["low_id"]))

    async def roots(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        rows = await self._fetch("failed_roots", ns=ns, run_ids=list(run_ids), generations_max=GENERATIONS_MAX)
        return {r["leaf"]: r["run_id"] for r in rows}


def _letter(row: Any) -> DeadLetter:
    return DeadLetter(
        task_id=row["id"],
        run_id=row["run_id"],
        seq=row["seq"],
        task=row["name"],
        queue=row["queue"],
        attempts=row["attempts"],
        lost=row["lost"],
        scheduled_us=row["scheduled_at"],
        failed_us=row["finished_at"],
        error=row["error"],
        node=row["node"],
        workflow=row["workflow"],
        key=row["key"],
        parent_id=row["parent_id"],
    )
