"""How an engine gets work on PostgreSQL: due runs, queued tasks, admissions of flow control, and what it loads of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from perdure.core.flow_control.admission import LimitUse
from perdure.core.flow_control.groups import FlowControlRules
from perdure.core.unopened import Unopened
from perdure.engine.ports import (
    AdmittedRuns,
    AdmittedTasks,
    Adopted,
    ClaimedRun,
    ClaimedTask,
    Due,
    HistoryRow,
    InboxRow,
    Kind,
    Loaded,
    Pin,
)
from perdure.store import flow_control
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort

log = logging.getLogger("perdure.store")

KEY_WAIT_S: Final = 15.0
"""How long a task waits whose input cannot be opened, before it is claimed again."""


@retried()
class PostgresClaims(PostgresPort):
    async def next_due(self, workflows: Sequence[Pin], served: Sequence[Kind], *, flows: bool) -> Due:
        row = await self._row("next_due", workflows=workflows, kinds=served, flows=flows)
        return Due(
            row["clock"],
            row["run_at"],
            row["task_at"],
            row["messages"],
            row["task_group_at"],
            row["run_group_at"],
            row["rules_at"],
            row["task_group_priority"],
            row["suspects"],
        )

    async def claim_runs(
        self, session: int, workflows: Sequence[Pin], limit: int, *, with_messages: bool, flows: bool
    ) -> list[ClaimedRun]:
        return await self._claim(
            "claim_runs_with_messages" if with_messages else "claim_runs", session, workflows, limit, flows
        )

    async def claim_suspect(self, session: int, workflows: Sequence[Pin], *, flows: bool) -> list[ClaimedRun]:
        """One run that was taken over several times without progress, if there is one."""
        return await self._claim("claim_suspect", session, workflows, 1, flows)

    async def _claim(
        self, name: str, session: int, workflows: Sequence[Pin], limit: int, flows: bool
    ) -> list[ClaimedRun]:
        rows = await self._fetch(name, session=session, workflows=workflows, limit=limit, flows=flows)
        return [
            ClaimedRun(
                r["run_id"],
                r["ns"],
                r["workflow"],
                r["version"],
                r["epoch"],
                tuple(r["keys"] or ()),
                r["pin"],
                tuple(msgspec.json.decode(r["full_signals"])) if r["full_signals"] else (),
            )
            for r in rows
        ]

    async def claim_tasks(self, session: int, served: Sequence[tuple[Kind, int]], limit: int) -> list[ClaimedTask]:
        kinds = [(*kind, free) for kind, free in served]
        rows = await self._fetch("claim_tasks", session=session, kinds=kinds, limit=limit)
        return await self._readable(session, [ClaimedTask(*r.values()) for r in rows])

    async def _readable(self, session: int, tasks: list[ClaimedTask]) -> list[ClaimedTask]:
        """Without those whose key is missing, which wait for it."""
        closed = [t for t in tasks if isinstance(t.input, Unopened) or isinstance(t.options, Unopened)]
        if not closed:
            return tasks
        for task in closed:
            data = task.input if isinstance(task.input, Unopened) else task.options
            assert isinstance(data, Unopened)
            log.error(
                "task %d of run %s waits %g s for its key: %s", task.seq, task.run_id.hex(), KEY_WAIT_S, data.error
            )
        await self._execute("put_back_tasks", session=session, ids=[t.id for t in closed], delay_s=KEY_WAIT_S)
        return [t for t in tasks if t not in closed]

    async def claim_from_lines(
        self, session: int, served: Sequence[tuple[Kind, int]], limit: int, rules: FlowControlRules
    ) -> AdmittedTasks:
        async with self._pool.take() as c:
            admitted = await flow_control.claim_from_lines(c, session, served, limit, rules)
        return AdmittedTasks(await self._readable(session, admitted.tasks), admitted.next_us)

    async def admit_runs(self, session: int, rules: FlowControlRules) -> AdmittedRuns:
        async with self._pool.take() as c:
            return await flow_control.admit_runs(c, session, rules)

    async def wake_lines(self, keys: Iterable[tuple[int, str]]) -> None:
        async with self._pool.take() as c:
            await flow_control.wake_lines(c, keys)

    async def held_by(self, ns: int, key: str) -> LimitUse:
        async with self._pool.take() as c:
            return await flow_control.held_by(c, ns, key)

    async def rules(self) -> FlowControlRules:
        async with self._pool.take() as c:
            return await flow_control.read_rules(c)

    async def controls(self, ns: int, workflows: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        """What versions of workflows say about flow control of their runs; those that say nothing are left out."""
        rows = await self._fetch("flow_control_options", ns=ns, versions=workflows)
        return {(r["workflow"], r["version"]): r["control"].encode() for r in rows}

    async def adopt_tasks(self, session: int, ns: int, tokens: Sequence[tuple[bytes, int]]) -> Adopted:
        """Take over running tasks with the worker that runs them; the engine it comes from finds out by looking."""
        rows = await self._fetch("adopt_tasks", session=session, ns=ns, tasks=tokens)
        known = await self._fetch("known_tasks", ns=ns, ids=[task_id for task_id, _ in tokens])
        return Adopted([ClaimedTask(*r.values()) for r in rows], {r["id"] for r in known})

    async def still_mine(self, session: int, ids: Sequence[bytes]) -> set[bytes]:
        return {r["id"] for r in await self._fetch("held_task_ids", session=session, ids=list(ids))}

    async def load(self, run_ids: Sequence[bytes]) -> Loaded:
        """One statement, hence one snapshot: a task is in the queue, or its end is in the inbox or the history, or it is lost. Separate
        reads could miss an end that moves from the queue to the inbox, or from the inbox to the history, in between. It reads all
        messages: a task whose end were left out would be taken for lost."""
        wanted = list(run_ids)
        queued: set[tuple[bytes, int]] = set()
        messages: list[InboxRow] = []
        history: dict[bytes, list[HistoryRow]] = {r: [] for r in wanted}
        for part, run_id, n, last, at_us, body, hash in await self._fetch("load_runs", run_ids=wanted):
            if part == "history":
                history[run_id].append(HistoryRow(run_id, n, last, at_us, body, hash))
            elif part == "message":
                messages.append(InboxRow(n, run_id, body))
            else:
                queued.add((run_id, n))
        return Loaded(queued, history, messages)

    async def owned_messages(self, session: int, limit: int) -> list[InboxRow]:
        return [InboxRow(*r.values()) for r in await self._fetch("inbox_of_session", session=session, limit=limit)]

    async def existing(self, ns: int, run_ids: Sequence[bytes]) -> set[bytes]:
        return (
            {r["run_id"] for r in await self._fetch("existing_runs", ns=ns, run_ids=list(run_ids))}
            if run_ids
            else set()
        )
