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
from perdure.core.limits import MESSAGES_PENDING_MAX
from perdure.core.links import SECRET_BYTES
from perdure.core.message_limits import limit_error
from perdure.core.questions import BY_NAME, name_question
from perdure.engine.api.ports import AuditDetail
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row

APPROVAL: Final = "approval"
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
class PostgresApprovals(PostgresPort):
    def __init__(self, database: str | Connections) -> None:
        super().__init__(database)
        self._secret = b""
        self._used = 0

    @asynccontextmanager
    async def hold(self, ns: int, run_id: bytes, name: str) -> AsyncGenerator[PostgresHeldApproval]:
        async with self._pool.take() as c, c.transaction():
            held = PostgresHeldApproval(c, ns, run_id, name)
            await held.load()
            yield held
        if held.used_link:
            await self._sweep()

    async def find(self, ns: int, run_id: bytes, name: str) -> Standing | None:
        async with self._pool.take() as c:
            row = await fetch_row(c, "find_approval", run_id=run_id, ns=ns, name=name)
            found = await _standings(c, [row] if row is not None and row["kind"] == APPROVAL else [])
        return found[0] if found else None

    async def of_run(self, ns: int, run_id: bytes, limit: int) -> list[Standing]:
        async with self._pool.take() as c:
            return await _standings(c, await fetch(c, "approvals_of_run", run_id=run_id, ns=ns, limit=limit))

    async def page(
        self, ns: int, names: Sequence[str] | None, workflow: str | None, after: ApprovalPosition | None, limit: int
    ) -> ApprovalPage:
        async with self._pool.take() as c:
            found, following = await _scan(c, "list_approvals", "created_at", after, limit, _where(ns, names, workflow))
            return ApprovalPage(await _standings(c, found), following)

    async def decided(
        self, ns: int, names: Sequence[str] | None, workflow: str | None, after: ApprovalPosition | None, limit: int
    ) -> ApprovalPage:
        async with self._pool.take() as c:
            where = _where(ns, names, workflow)
            found, following = await _scan(c, "decided_approvals", "decided_at", after, limit, where)
        votes = [msgspec.json.decode(r["votes"], type=list[Vote]) for r in found]
        return ApprovalPage([_standing(r, given) for r, given in zip(found, votes, strict=True)], following)

    async def secret(self) -> bytes:
        if not self._secret:
            async with self._pool.take() as c:
                await execute(c, "make_secret", name=SECRET, value=secrets.token_bytes(SECRET_BYTES))
                self._secret = (await fetch_row(c, "find_secret", name=SECRET))["value"]
        return self._secret

    async def now_us(self) -> int:
        async with self._pool.take() as c:
            now: int = (await fetch_row(c, "approval_clock"))["now"]
        return now

    async def was_used(self, link: bytes) -> bool:
        async with self._pool.take() as c:
            return bool((await fetch_row(c, "link_was_used", id=link))["used"])

    async def key_name(self, ident: str) -> str | None:
        async with self._pool.take() as c:
            row = await fetch_row(c, "key_name", id=ident)
        return row["name"] if row is not None else None

    async def _sweep(self) -> None:
        self._used += 1
        if self._used % SWEEP_EVERY == 0:
            async with self._pool.take() as c:
                await execute(c, "delete_expired_links", limit=SWEEP_ROWS)


class PostgresHeldApproval:
    """One promise in one transaction. The order of locks: its run, then itself."""

    def __init__(self, connection: Any, ns: int, run_id: bytes, name: str) -> None:
        self._c = connection
        self._ns, self._run_id, self._name = ns, run_id, name
        self.standing: Standing | None = None
        self.is_active = self.used_link = False
        self.now_us = 0

    async def load(self) -> None:
        row = await fetch_row(self._c, "hold_approval", run_id=self._run_id, ns=self._ns, name=self._name)
        if row is None:
            held = await fetch_row(self._c, "hold_run", run_id=self._run_id, ns=self._ns)
            self.is_active, self.now_us = held["active"], held["now"]
            return
        self.is_active, self.now_us = True, row["now"]
        if row["kind"] == APPROVAL and row["asked"]:
            self.standing = (await _standings(self._c, [row]))[0]

    async def cast(self, vote: Vote) -> None:
        await execute(
            self._c,
            "cast_vote",
            run_id=self._run_id,
            name=self._name,
            who=vote.who,
            approved=vote.approved,
            value=vote.value,
            comment=vote.comment or None,
            via=vote.via,
            at=vote.at_us,
        )

    async def decide(self, message: bytes) -> None:
        row = await fetch_row(
            self._c,
            "decide_approval",
            run_id=self._run_id,
            name=self._name,
            body=message,
            pending_max=MESSAGES_PENDING_MAX,
        )
        self._check_limits(row)

    async def resolve(self, message: bytes) -> bool:
        row = await fetch_row(
            self._c,
            "resolve_promise",
            run_id=self._run_id,
            ns=self._ns,
            name=self._name,
            body=message,
            authorized=False,
            question=BY_NAME,
            pending_max=MESSAGES_PENDING_MAX,
        )
        self._check_limits(row)
        return bool(row["won"])

    def _check_limits(self, row: Any) -> None:
        """The error takes the transaction back: no vote counts, and no link is used up."""
        if (refusal := limit_error(row["outcome"], self._run_id, self._name)) is not None:
            raise refusal

    async def reassign(self, assignees: list[str], escalate_to: list[str]) -> None:
        await execute(
            self._c,
            "reassign_approval",
            run_id=self._run_id,
            name=self._name,
            assignees=assignees,
            escalate_to=escalate_to,
        )

    async def use_link(self, id: bytes, expires_us: int) -> bool:
        self.used_link = await fetch_row(self._c, "use_link", id=id, expires_at=expires_us) is not None
        return self.used_link

    async def audit(self, actor: str, action: str, detail: AuditDetail) -> None:
        text = msgspec.json.encode(detail).decode()
        await execute(
            self._c, "append_audit", ns=self._ns, actor=actor, action=action, target=ids.text(self._run_id), detail=text
        )


def _where(ns: int, names: Sequence[str] | None, workflow: str | None) -> dict[str, Any]:
    return {"ns": ns, "names": None if names is None else list(names), "workflow": workflow}


async def _scan(
    c: Any, query: str, moment: str, after: ApprovalPosition | None, limit: int, where: dict[str, Any]
) -> tuple[list[Any], ApprovalPosition | None]:
    """Up to `limit` rows that match, and where the next page begins; `moment` is the column that the list is ordered by."""
    found: list[Any] = []
    for _ in range(SCANS_MAX):
        at_us, run_id, name = after or (None, None, None)
        rows = await fetch(c, query, after_at=at_us, after_run_id=run_id, after_name=name, limit=SCAN_ROWS, **where)
        for row in rows:
            if len(found) == limit:
                return found, after
            after = row[moment], row["run_id"], row["name"]
            if row["matches"]:
                found.append(row)
        if len(rows) < SCAN_ROWS:
            return found, None
    return found, after


async def _standings(c: Any, rows: Sequence[Any]) -> list[Standing]:
    if not rows:
        return []
    votes: dict[tuple[bytes, str], list[Vote]] = {}
    given = await fetch(c, "votes_of", approvals=[(r["run_id"], r["name"]) for r in rows])
    for v in given:
        votes.setdefault((v["run_id"], v["name"]), []).append(
            Vote(
                who=v["who"],
                approved=v["approved"],
                value=v["value"] or b"null",
                comment=v["comment"] or "",
                via=v["via"],
                at_us=v["at"],
            )
        )
    return [_standing(r, votes.get((r["run_id"], r["name"]), [])) for r in rows]


def _standing(r: Any, votes: list[Vote]) -> Standing:
    return Standing(
        run_id=r["run_id"],
        name=r["name"],
        workflow=r["workflow"],
        key=r["key"],
        spec=decode_spec(r["spec"]),
        assignees=list(r["assignees"]),
        escalate_to=list(r["escalate_to"]),
        created_us=r["created_at"],
        resolved_us=r["resolved_at"],
        now_us=r["now"],
        votes=votes,
        question=name_question(r["run_id"], r["question"]),
        digest=r["question"],
    )
