"""Retry of a failed run: what core/run_retry.py decides, carried out.

Failed children are retried first, each in a transaction of its own, and the parent afterwards. A crash in between leaves an active
child of a failed parent; another retry of the parent takes the child as it then is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from perdure.core import chain, ids
from perdure.core import events as ev
from perdure.core.errors import Conflict, Failure
from perdure.core.events import Recorded
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import SUCCESSORS_MAX
from perdure.core.payloads import NeedPayload
from perdure.core.questions import BY_NAME, asked_by
from perdure.core.retry import waits_until_us
from perdure.core.run_retry import check_retry, effective, plan
from perdure.core.runstate import RunState
from perdure.core.work import RunView, is_flow
from perdure.engine.api.api import NamespaceApi
from perdure.engine.ports import AskedPromise, QueuedTask, RetryChanges
from perdure.engine.runs.flow_payloads import FlowPayloads
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.run_rows import attributes_text
from perdure.engine.runs.turns import replay
from perdure.flows.decide.decider import Decider, DecisionTooLarge
from perdure.flows.decide.overrides import failed_children, failed_nodes
from perdure.flows.decide.progress import node_statuses
from perdure.wire.codec import decode_row, encode_events, encode_options

ROWS_PAGE: Final = 1_000
NODES_SHOWN: Final = 20
"""Failed nodes that a refusal lists."""
GENERATIONS_MAX: Final = 100
"""Depth of nested children that one retry descends to."""


class RunRetry:
    def __init__(self, api: NamespaceApi) -> None:
        self._store, self._ns, self._by = api.ports.store, api.ns, api.by
        self._flows, self._flow_control = api.engine.flows, api.engine.flow_control
        self._payloads = FlowPayloads(api.engine.payloads)
        self._woken = api.engine.events.message_sent.publish

    async def override(self, run_id: bytes, decision: ev.NodeOverridden) -> None:
        """Retry a failed run of a flow, with the failure of one node replaced. Raises NotFound, Conflict as `retry`, and for a node
        that has not failed."""
        await self.retry(run_id, decision=decision)

    async def retry(self, run_id: bytes, generation: int = 0, decision: ev.NodeOverridden | None = None) -> None:
        """Retry a failed run. Raises NotFound, or Conflict when it cannot be retried or another retry was faster."""
        by = self._by
        view, history = await self.check(run_id)
        if decision is not None and not is_flow(view.version):
            raise Conflict(
                f"run {ids.text(run_id)} is of the Python workflow {view.workflow!r}, which has no nodes; fork it with an edited result instead"
            )
        if is_flow(view.version):
            event = await self._plan_flow(view, history, generation, decision)
        else:
            living = await self._retry_children(history, plan(history, by), generation)
            event = plan(history, by, living)
        await self._flow_control.find(self._ns, [(view.workflow, view.version)])
        started = history[0].event
        assert isinstance(started, ev.RunStarted)
        group = self._flow_control.of_run((self._ns, view.workflow, view.version), started.input)
        events: list[ev.NodeOverridden | ev.RunRetried] = [event] if decision is None else [decision, event]
        group_of = partial(self._flow_control.of_task, self._ns, view.workflow)
        change = retry_changes(run_id, self._ns, history, events, group_of, group)
        if started.key:
            input_hash = chain.input_hash(started.workflow, started.input)
            change = msgspec.structs.replace(change, key=started.key, input_hash=input_hash)
        if not await self._store.retry_run(change):
            raise Conflict(f"run {ids.text(run_id)} was retried by another request at the same moment")
        self._woken(run_id)

    async def check(self, run_id: bytes) -> tuple[RunView, list[Recorded]]:
        """The run and its history. Raises what a retry would: NotFound, or Conflict when it cannot be retried."""
        view = await self._store.describe(run_id, self._ns)
        if view is None:
            raise ids.no_run(run_id)
        if view.status != RunStatus.FAILED:
            raise Conflict(f"run {ids.text(run_id)} is {RunStatus(view.status).word}, only failed runs can be retried")
        history = await self._history(run_id)
        check_retry(history)
        return view, history

    async def _plan_flow(
        self, view: RunView, history: list[Recorded], generation: int, decision: ev.NodeOverridden | None
    ) -> ev.RunRetried:
        """Nothing is taken back: the decider goes on from where it was. It says which failed children it would wait for again."""
        await self._flows.ensure([(self._ns, view.workflow, view.version)])
        decider = await self._replayed(view, history)
        if decision is not None:
            _check_node(decider, decision.node)
        left_out = decision.node if decision is not None else ""
        wanted = ev.RunRetried(0, [], failed_children(decider.root, left_out), self._by)
        living = await self._retry_children(history, wanted, generation)
        anew = [c for c in wanted.voided_children if c not in living]
        return ev.RunRetried(0, [], anew, self._by, [], sorted(living))

    async def _replayed(self, view: RunView, history: list[Recorded]) -> Decider:
        """The decider where the run failed. Stored values that its expressions read are loaded, as while the run was decided."""
        run = ActiveRun(view.run_id, self._ns, view.workflow, view.version, 0)
        while True:
            decider = self._flows.decider(self._ns, view.workflow, view.version, view.run_id)
            if isinstance(decider, Failure):
                raise Conflict(decider.message)
            try:
                await replay(decider, self._payloads.readable(run, history))
                return decider
            except NeedPayload as e:
                await self._payloads.load(run, e.references)
            except DecisionTooLarge as e:
                raise Conflict(str(e)) from None

    async def _history(self, run_id: bytes) -> list[Recorded]:
        out: list[Recorded] = []
        while rows := await self._store.history_after(run_id, self._ns, out[-1].seq if out else 0, ROWS_PAGE):
            out.extend(r for row in rows for r in decode_row(row.seq, row.at_us, row.body))
        return out

    async def _retry_children(self, history: list[Recorded], event: ev.RunRetried, generation: int) -> set[int]:
        """Retry the children that failed. Those that go on, or have ended well since, need not be started anew."""
        if not event.voided_children or generation >= GENERATIONS_MAX:
            return set()
        seen = effective(history)
        runs = {r.event.seq: r.event.run_id for r in seen if isinstance(r.event, ev.ChildStarted)}
        told = {r.event.seq for r in seen if isinstance(r.event, ev.ChildFailed | ev.ChildCancelled)}
        stopped = {r.event.seq for r in seen if isinstance(r.event, ev.ChildCancelRequested)}
        left_alone = told | (runs.keys() - stopped)
        return {c for c in event.voided_children if await self._goes_on(runs[c], c in left_alone, generation)}

    async def _goes_on(self, child: bytes, left_alone: bool, generation: int) -> bool:
        """`left_alone`: it was not asked to stop since."""
        view = await self._last(child)
        if view is not None and view.status == RunStatus.FAILED:
            try:
                await self.retry(view.run_id, generation + 1)
                return True
            except Conflict:
                view = await self._last(child)
        if view is None or view.status in (RunStatus.FAILED, RunStatus.CANCELLED):
            return False
        # An active child was abandoned by its parent, or was retried on its own after its end was recorded; any other is about to be
        # cancelled.
        return view.status == RunStatus.SUCCESS or left_alone

    async def _last(self, run_id: bytes) -> RunView | None:
        """The run, or the last one of those that it continued in."""
        for _ in range(SUCCESSORS_MAX):
            view = await self._store.describe(run_id, self._ns)
            if view is None or view.next_run is None:
                return view
            run_id = view.next_run
        return None


def retry_changes(
    run_id: bytes,
    ns: int,
    history: list[Recorded],
    events: list[ev.NodeOverridden | ev.RunRetried],
    group_of: Callable[[ev.TasksScheduled, int], FlowControlGroup | None],
    group: FlowControlGroup | None,
) -> RetryChanges:
    """The rows that a retry changes: the difference between the run as it failed and as it goes on."""
    before = effective(history)
    last = history[-1]
    after = effective([*history, *(Recorded(last.seq + n, last.at_us, event) for n, event in enumerate(events, 1))])
    failed, retried = _fold(before), _fold(after)
    stale = sorted(_ended_tasks(before) - _ended_tasks(after))
    kept = {r.event.run_id for r in after if isinstance(r.event, ev.ChildStarted)}
    values = {n: retried.state.get(n) for n in failed.state.keys() | retried.state.keys()}
    return RetryChanges(
        run_id=run_id,
        ns=ns,
        events=last.seq,
        body=encode_events([*events]),  # pyrefly: ignore[bad-argument-type]
        added=len(events),
        stale=[ids.derive(run_id, ids.TASK, seq) for seq in stale],
        stale_seqs=stale,
        queued=[_queued(run_id, seq, e, group_of(e, seq)) for seq, e in sorted(retried.tasks.items())],
        promises=asked_promises(retried),
        states={n: v for n, v in values.items() if v != failed.state.get(n)},
        orphans=[r.event.run_id for r in before if isinstance(r.event, ev.ChildStarted) and r.event.run_id not in kept],
        group=group,
        attributes=attributes_text(retried.attributes),
        pinned=any(isinstance(r.event, ev.RunStarted | ev.RunBegan) and r.event.pinned for r in history[:2]),
    )


def asked_promises(state: RunState) -> list[AskedPromise]:
    """What a run asks for, and the values that came before anything asked for them."""
    events = state.event_ids or {}
    asked = [
        AskedPromise(n, p, asked_by(p), state.is_resolved(n), is_authorized=False, event_id=events.get(n))
        for n, p in state.promises.items()
    ]
    if state.values is None:
        return asked
    early = sorted({name for name, _ in state.values.by_name()} - state.promises.keys())
    return asked + [AskedPromise(n, None, BY_NAME, True, state.values.authorized(n)) for n in early]


def _check_node(decider: Decider, node: str) -> None:
    failed = failed_nodes(decider.root)
    if node in failed:
        return
    status = node_statuses(decider).get(node)
    what = f"the node {node!r} has not failed: it is {status}" if status else f"the flow has no node {node!r}"
    raise Conflict(f"{what}. Nodes that failed: {', '.join(failed[:NODES_SHOWN]) or 'none'}")


def _fold(records: list[Recorded]) -> RunState:
    state = RunState()
    for r in records:
        state.apply(r.event)
    return state


def _ended_tasks(records: list[Recorded]) -> set[int]:
    ended: set[int] = set()
    for r in records:
        match r.event:
            case ev.TasksSucceeded() | ev.TasksCancelled():
                ended.update(r.event.seqs)
            case ev.TaskFailed():
                ended.add(r.event.seq)
            case _:
                pass
    return ended


def _queued(run_id: bytes, seq: int, event: ev.TasksScheduled, group: FlowControlGroup | None) -> QueuedTask:
    return QueuedTask(
        ids.derive(run_id, ids.TASK, seq),
        seq,
        event.name,
        event.queue,
        encode_options(event.options),
        event.inputs[seq - event.first],
        waits_until_us(event.options, 0, 0),
        group,
    )
