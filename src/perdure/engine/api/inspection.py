"""Acts that look into a run: its state as of an event, its difference from another run, its history as a document."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import inspection as acts
from perdure.core.api.inspection import DiffRuns, ExportedRun, ExportRun, GetRunAt, RunAt, RunDiff
from perdure.core.errors import Conflict, Failure, InvalidInput, PayloadTooLarge, PerdureError
from perdure.core.events import Recorded
from perdure.core.limits import DEBUG_HISTORY_EVENTS_MAX, EXPORTED_BYTES_MAX
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import NeedPayload, values_of
from perdure.core.run_inspection import diff, run_at
from perdure.core.work import is_flow
from perdure.engine.api.api import NamespaceApi, handles
from perdure.engine.runs.turns import replay
from perdure.flows.decide.decider import DecisionTooLarge
from perdure.flows.decide.progress import node_statuses
from perdure.wire.codec import history_to_json

BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of encoded history that are read for one of these acts."""


@handles(acts.AT)
async def state_at(api: NamespaceApi, r: GetRunAt) -> RunAt:
    run_id = await api.run_id(r.run)
    history = await _history(api, run_id)
    found = run_at(run_id, history, r.at)
    if not is_flow(found.version):
        return found
    return msgspec.structs.replace(found, nodes=await _nodes(api, run_id, found, history))


async def _nodes(api: NamespaceApi, run_id: bytes, found: RunAt, history: list[Recorded]) -> dict[str, str]:
    """Empty where they cannot be worked out: the rest is useful without them."""
    flows = api.engine.flows
    await flows.ensure([(api.ns, found.workflow, found.version)])
    decider = flows.decider(api.ns, found.workflow, found.version, run_id)
    if isinstance(decider, Failure):
        return {}
    try:
        await replay(decider, history[: found.at])
    except (PerdureError, NeedPayload, DecisionTooLarge):
        return {}
    return node_statuses(decider)


@handles(acts.DIFF)
async def diff_runs(api: NamespaceApi, r: DiffRuns) -> RunDiff:
    one, other = await api.run_id(r.run), await api.run_id(r.other)
    return diff((one, await _history(api, one)), (other, await _history(api, other)))


@handles(acts.EXPORT)
async def export(api: NamespaceApi, r: ExportRun) -> ExportedRun:
    """With stored values in their places, so that it can be replayed anywhere."""
    run_id = await api.run_id(r.run)
    history = await _history(api, run_id)
    size = sum(v.size for record in history for p in payloads_of(record.event) for v in values_of(p))
    if size > EXPORTED_BYTES_MAX:
        raise PayloadTooLarge(
            f"the history of run {ids.text(run_id)} refers to stored values of {size:,} bytes, over the limit "
            f"EXPORTED_BYTES_MAX={EXPORTED_BYTES_MAX:,} of an export"
        )
    transfer = api.engine.payloads.of(api.ns).transfer
    loaded = [Recorded(x.seq, x.at_us, await transfer.resolve_record(x.event)) for x in history]
    return ExportedRun(history_to_json(ids.text(run_id), loaded))


async def _history(api: NamespaceApi, run_id: bytes) -> list[Recorded]:
    try:
        history = await api.ports.reads.history(api.ns, run_id, 0, DEBUG_HISTORY_EVENTS_MAX + 1, BYTES_MAX)
    except (InvalidInput, msgspec.DecodeError) as e:
        raise Conflict(f"the history of run {ids.text(run_id)} cannot be read by this server: {e}") from None
    if not history:
        raise ids.no_run(run_id)
    if len(history) > DEBUG_HISTORY_EVENTS_MAX or not isinstance(history[0].event, ev.RunStarted):
        raise Conflict(
            f"run {ids.text(run_id)} has more than DEBUG_HISTORY_EVENTS_MAX={DEBUG_HISTORY_EVENTS_MAX} events, too many to be read at once"
        )
    return history
