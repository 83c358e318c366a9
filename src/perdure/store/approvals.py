"""The ApprovalStore port on PostgreSQL."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.api.approvals import ApprovalPage, ApprovalPosition
from perdure.core.approvals import Standing, Vote, decode_spec
from perdure.core.links import SECRET_BYTES
from perdure.engine.api.ports import AuditDetail
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.queries import queries

APPROVAL: Final = 1
"""Kind of a promise that is one."""
SECRET: Final = "links"
SCAN_ROWS: Final = 500
"""Open approvals that one statement looks at."""
SCANS_MAX: Final = 10
"""Statements for one page; a page that is still short then goes on at the next one."""
SWEEP_EVERY: Final = 100
"""Links used between two sweeps of expired ones."""
SWEEP_ROWS: Final = 1_000


@retried()
class PostgresApprovals:
    def __init__(self, database: str | Connections) -> None:
        """`database` is a DSN, or a pool that somebody else opens and closes."""
        self._q = queries()
        self._pool = Connections(database) if isinstance(database, str) else database
        self._secret = b""
        self._used = 0

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def hold(self, ns: int, run_id: bytes, name: str) -> AsyncGenerator[HeldApproval]:
        async with self._pool.take() as c, c.transaction():
            held = HeldApproval(c, ns, run_id, name)
            await held.load()
            yield held
        if held.used_link:
            await self._sweep()

    async def find(self, ns: int, run_id: bytes, name: str) -> Standing | None:
        async with self._pool.take() as c:
            row = await c.fetchrow(self._q["find_approval"], run_id, ns, name)
            found = await _standings(c, [row] if row is not None and row["kind"] == APPROVAL else [])
        return found[0] if found else None

    async def of_run(self, ns: int, run_id: bytes, limit: int) -> list[Standing]:
        async with self._pool.take() as c:
            return await _standings(c, await c.fetch(self._q["approvals_of_run"], run_id, ns, limit))

    async def page(
        self, ns: int, names: Sequence[str] | None, workflow: str | None, after: ApprovalPosition | None, limit: int
    ) -> ApprovalPage:
        found: list[Any] = []
        wanted = None if names is None else list(names)
        async with self._pool.take() as c:
            for _ in range(SCANS_MAX):
                rows = await c.fetch(
                    self._q["list_approvals"], ns, wanted, workflow, *(after or (None,) * 3), SCAN_ROWS
                )
                for row in rows:
                    if len(found) == limit:
                        break
                    after = row["created_at"], row["run_id"], row["name"]
                    if row["matches"]:
                        found.append(row)
                else:
                    if len(rows) == SCAN_ROWS:
                        continue
                    after = None
                break
            return ApprovalPage(await _standings(c, found), after)

    async def secret(self) -> bytes:
        if not self._secret:
            async with self._pool.take() as c:
                await c.execute(self._q["make_secret"], SECRET, secrets.token_bytes(SECRET_BYTES))
                self._secret = (await c.fetchrow(self._q["find_secret"], SECRET))["value"]
        return self._secret

    async def now_us(self) -> int:
        async with self._pool.take() as c:
            now: int = (await c.fetchrow(self._q["approval_clock"]))["now"]
        return now

    async def was_used(self, link: bytes) -> bool:
        async with self._pool.take() as c:
            return bool((await c.fetchrow(self._q["link_was_used"], link))["used"])

    async def key_name(self, ident: str) -> str | None:
        async with self._pool.take() as c:
            row = await c.fetchrow(self._q["key_name"], ident)
        return row["name"] if row is not None else None

    async def _sweep(self) -> None:
        self._used += 1
        if self._used % SWEEP_EVERY == 0:
            async with self._pool.take() as c:
                await c.execute(self._q["forget_links"], SWEEP_ROWS)


class HeldApproval:
    """One promise in one transaction. The order of locks: its run, then itself."""

    def __init__(self, connection: Any, ns: int, run_id: bytes, name: str) -> None:
        self._c, self._q = connection, queries()
        self._ns, self._run_id, self._name = ns, run_id, name
        self.standing: Standing | None = None
        self.is_active = self.used_link = False
        self.now_us = 0

    async def load(self) -> None:
        row = await self._c.fetchrow(self._q["hold_approval"], self._run_id, self._ns, self._name)
        if row is None:
            held = await self._c.fetchrow(self._q["hold_run"], self._run_id, self._ns)
            self.is_active, self.now_us = held["active"], held["now"]
            return
        self.is_active, self.now_us = True, row["now"]
        if row["kind"] == APPROVAL:
            self.standing = (await _standings(self._c, [row]))[0]

    async def cast(self, vote: Vote) -> None:
        await self._c.execute(
            self._q["cast_vote"], self._run_id, self._name, vote.who, vote.approved, vote.value, vote.comment or None, vote.via, vote.at_us,
        )  # fmt: skip

    async def decide(self, message: bytes) -> None:
        decided = await self._c.fetchrow(self._q["decide_approval"], self._run_id, self._name, message)
        assert decided is not None, "it is ours, and was open a moment ago"

    async def resolve(self, message: bytes) -> bool:
        row = await self._c.fetchrow(self._q["resolve_promise"], self._run_id, self._ns, self._name, message, False)
        return bool(row["won"])

    async def reassign(self, assignees: list[str], escalate_to: list[str]) -> None:
        await self._c.execute(self._q["reassign_approval"], self._run_id, self._name, assignees, escalate_to)

    async def use_link(self, id: bytes, expires_us: int) -> bool:
        self.used_link = await self._c.fetchrow(self._q["use_link"], id, expires_us) is not None
        return self.used_link

    async def audit(self, actor: str, action: str, detail: AuditDetail) -> None:
        text = msgspec.json.encode(detail).decode()
        await self._c.execute(self._q["append_audit"], self._ns, actor, action, ids.text(self._run_id), text)


async def _standings(c: Any, rows: Sequence[Any]) -> list[Standing]:
    if not rows:
        return []
    votes: dict[tuple[bytes, str], list[Vote]] = {}
    given = await c.fetch(queries()["votes_of"], [r["run_id"] for r in rows], [r["name"] for r in rows])
    for v in given:
        votes.setdefault((v["run_id"], v["name"]), []).append(
            Vote(
                who=v["who"], approved=v["approved"], value=v["value"] or b"null", comment=v["comment"] or "", via=v["via"], at_us=v["at"]
            )
        )  # fmt: skip
    return [
        Standing(
            run_id=r["run_id"], name=r["name"], workflow=r["workflow"], key=r["key"], spec=decode_spec(r["spec"]),
            assignees=list(r["assignees"]), escalate_to=list(r["escalate_to"]), created_us=r["created_at"], resolved_us=r["resolved_at"],
            now_us=r["now"], votes=votes.get((r["run_id"], r["name"]), []),
        )
        for r in rows
    ]  # fmt: skip
