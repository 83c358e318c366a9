"""Forks of runs: what core/run_fork.py decides, carried out in one transaction."""

from __future__ import annotations

from functools import partial
from itertools import groupby

import msgspec

from perdure.core import chain, ids
from perdure.core import events as ev
from perdure.core.api.repairs import ForkRun
from perdure.core.api.runs import StartedRun
from perdure.core.errors import Conflict, Failure, InvalidInput
from perdure.core.events import Recorded
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import held_by
from perdure.core.retry import waits_until_us
from perdure.core.run_fork import CopiedTask, Fork, ForkSpec, fork
from perdure.core.work import RunView, is_flow, run_kind
from perdure.engine.api.api import NamespaceApi
from perdure.engine.api.run_retry import asked_promises
from perdure.engine.api.starts import IDEMPOTENT_KEY, check_idempotency_key, check_same, digest
from perdure.engine.commits.rows import Seal
from perdure.engine.ports import CopiedRow, ForkedRow, ForkedRun, QueuedTask
from perdure.engine.runs.run_rows import attributes_text
from perdure.wire.codec import decode_row, encode_events, encode_options

ROWS_PAGE = 1_000


class RunFork:
    def __init__(self, api: NamespaceApi) -> None:
        self._api, self._ns, self._store = api, api.ns, api.ports.store

    async def fork(self, run_id: bytes, r: ForkRun) -> StartedRun:
        """Raises NotFound, InvalidInput for an event or a step that is not there, Conflict where the run cannot be forked."""
        api, engine = self._api, self._api.engine
        view = await api.view(run_id)
        key = await self._key(run_id, r)
        history = await read_history(api, run_id)
        version = await engine.flows.pin(self._ns, view.workflow) if r.code == "current" else view.version
        made = fork(
            history,
            ForkSpec(
                run_id=run_id,
                at=r.at,
                edits=r.edits,
                now_us=engine.clock.now_us(),
                by=api.by,
                version=version,
                key=key,
                timeout_us=await self._timeout(view, version),
            ),
        )
        new_id = engine.new_run_id()
        if not await self._store.fork_run(await self._rows(new_id, run_id, made)):
            return StartedRun(await api.run_of_key(key), is_new=False)
        engine.events.message_sent.publish(new_id)  # it is due: wakes the claims of this engine and of others
        return StartedRun(new_id)

    async def _key(self, run_id: bytes, r: ForkRun) -> str:
        if not r.idempotency_key:
            return ""
        key = check_idempotency_key(r.idempotency_key)
        wanted = digest("fork", run_id, r.at, sorted(r.edits.items()), r.code)
        known = await self._api.ports.definitions.remember(self._ns, f"start:{key}", wanted)
        check_same(key, known.held, wanted)
        return IDEMPOTENT_KEY + key

    async def _timeout(self, view: RunView, version: str) -> int:
        """How long a run of the flow may take. InvalidInput where its definition is not available."""
        if not is_flow(version):
            return 0
        flows = self._api.engine.flows
        await flows.ensure([(self._ns, view.workflow, version)])
        found = flows.decider(self._ns, view.workflow, version, view.run_id)
        if isinstance(found, Failure):
            raise Conflict(found.message)
        return found.flow.timeout_us or 0

    async def _rows(self, new_id: bytes, run_id: bytes, made: Fork) -> ForkedRun:
        ns, flow_control = self._ns, self._api.engine.flow_control
        started = made.records[0].event
        assert isinstance(started, ev.RunStarted)
        state, workflow = made.state, started.workflow
        await flow_control.find(ns, [(workflow, started.version)])
        group_of = partial(flow_control.of_task, ns, workflow)
        events = [*(r.event for r in made.records), *made.tail]
        return ForkedRun(
            run_id=new_id,
            ns=ns,
            workflow=workflow,
            version=started.version,
            kind=run_kind(started.version),
            pin=started.version if started.pinned else "",
            key=started.key,
            input_hash=chain.input_hash(workflow, started.input),
            attributes=attributes_text(state.attributes),
            deadline_us=state.deadline_us,
            group=flow_control.of_run((ns, workflow, started.version), started.input),
            rows=chained(new_id, ns, made, self._api.engine.seal_history),
            copies=[_copied(new_id, run_id, task) for task in made.tasks],
            queued=[
                QueuedTask(
                    ids.derive(new_id, ids.TASK, seq),
                    seq,
                    e.name,
                    e.queue,
                    encode_options(e.options),
                    e.inputs[seq - e.first],
                    waits_until_us(e.options, 0, 0),
                    group_of(e, seq),
                    ev.label(e, seq) or None,
                )
                for seq, e in sorted(state.tasks.items())
            ],
            promises=asked_promises(state),
            states=dict(state.state),
            uses=sorted(set(held_by(p for e in events for p in payloads_of(e)))),
        )


def chained(run_id: bytes, ns: int, made: Fork, seal: Seal) -> list[ForkedRow]:
    """The history as rows: one for each moment of the copies, and the last one for the moment of the fork."""
    parts: list[tuple[int | None, list[Recorded]]] = [
        (at_us, list(records)) for at_us, records in groupby(made.records, key=lambda r: r.at_us)
    ]
    first = made.records[-1].seq + 1
    parts.append((None, [Recorded(first + i, 0, event) for i, event in enumerate(made.tail)]))
    rows: list[ForkedRow] = []
    before, before_us = chain.BEGINNING, 0
    for at_us, records in parts:
        body = seal(run_id, encode_events([r.event for r in records]))
        before = chain.link(before, before_us, run_id, ns, records[0].seq, records[-1].seq, 0, body)
        rows.append(ForkedRow(records[0].seq, records[-1].seq, at_us, body, before))
        before_us = at_us or 0
    return rows


def _copied(new_id: bytes, run_id: bytes, t: CopiedTask) -> CopiedRow:
    return (
        ids.derive(new_id, ids.TASK, t.seq),
        ids.derive(run_id, ids.TASK, t.seq),
        t.seq,
        t.name,
        t.queue,
        t.status.word,
        t.attempts,
        t.scheduled_us,
        t.finished_us,
        t.error,
        t.node,
    )


async def read_history(api: NamespaceApi, run_id: bytes) -> list[Recorded]:
    """The whole history of a run. Conflict where it cannot be read."""
    out: list[Recorded] = []
    while rows := await api.ports.store.history_after(run_id, api.ns, out[-1].seq if out else 0, ROWS_PAGE):
        for row in rows:
            try:
                out.extend(decode_row(row.seq, row.at_us, row.body))
            except (InvalidInput, msgspec.DecodeError) as e:
                raise Conflict(
                    f"events {row.seq}..{row.last} of run {ids.text(run_id)} cannot be read by this server: {e}"
                ) from None
    return out
