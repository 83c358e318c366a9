"""Acts that repeat or repair a run: rerun, fork, override a node."""

from __future__ import annotations

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import repairs as acts
from perdure.core.api.repairs import ForkRun, OverrideNode, RerunRun
from perdure.core.api.runs import StartedRun
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.events import Recorded
from perdure.core.input_edits import edited
from perdure.core.limits import FORK_EDITS_MAX
from perdure.core.payloads import MARK, opened
from perdure.core.work import StartRequest, is_flow
from perdure.engine.api import starts
from perdure.engine.api.api import NamespaceApi, handles
from perdure.engine.api.payloads import taken
from perdure.engine.api.run_fork import RunFork
from perdure.engine.api.run_retry import RunRetry
from perdure.wire.codec import decode_row

HOW = ("rerun", "skip", "set")
"""What can be decided about a node by hand."""


@handles(acts.RERUN)
async def rerun(api: NamespaceApi, r: RerunRun) -> StartedRun:
    """A new run with the same or an edited input, and the same attributes. It begins anew, as any start does."""
    if r.input is not None and r.edits:
        raise InvalidInput("give another input, or edits of the recorded one, not both")
    run_id = await api.run_id(r.run)
    first = await first_record(api, run_id)
    started = first.event
    assert isinstance(started, ev.RunStarted)
    request = StartRequest(
        workflow=started.workflow,
        version=r.version,
        input=await _input(api, r, started),
        key=r.key,
        timeout_us=max(started.deadline_us - first.at_us, 0) if started.deadline_us else 0,
        attributes=started.attributes,
        idempotency_key=r.idempotency_key,
        registered_only=True,
        rerun_of=run_id,
        schedule=started.schedule,
        nominal_us=started.nominal_us,
    )
    begun = await starts.start(api, request)
    if begun.is_new:
        await api.record("run.rerun", begun.run_id, of=ids.text(run_id), edited=r.input is not None or bool(r.edits))
    return begun


async def _input(api: NamespaceApi, r: RerunRun, started: ev.RunStarted) -> bytes:
    if r.input is not None:
        return r.input
    if not r.edits:
        return started.input
    _check_values(r.edits)
    data = started.input
    if data.startswith(MARK):
        data = await api.engine.payloads.of(api.ns).transfer.resolve(data)
        data = opened(data).body if data.startswith(MARK) else data
    names: tuple[str, ...] = ()
    if not is_flow(started.version):
        known = (await api.ports.store.published(api.ns, started.workflow, started.version)).parameters
        names = tuple(msgspec.json.decode(known).get("names", ())) if known else ()
    return edited(data, r.edits, names)


async def first_record(api: NamespaceApi, run_id: bytes) -> Recorded:
    rows = await api.ports.store.history_after(run_id, api.ns, 0, 1)
    if not rows:
        raise ids.no_run(run_id)
    try:
        first = decode_row(rows[0].seq, rows[0].at_us, rows[0].body)[0]
    except (InvalidInput, msgspec.DecodeError) as e:
        raise Conflict(f"the first event of run {ids.text(run_id)} cannot be read: {e}") from None
    return first


@handles(acts.FORK)
async def fork(api: NamespaceApi, r: ForkRun) -> StartedRun:
    """See core/run_fork.py."""
    if r.code not in ("same", "current"):
        raise InvalidInput(f"code is same or current, not {r.code!r}")
    if len(r.edits) > FORK_EDITS_MAX:
        raise InvalidInput(f"{len(r.edits)} results are to be set, over the limit FORK_EDITS_MAX={FORK_EDITS_MAX}")
    _check_values(r.edits)
    run_id = await api.run_id(r.run)
    edits = {step: await taken(api, value, f"the result of {step}") for step, value in r.edits.items()}
    forked = await RunFork(api).fork(run_id, msgspec.structs.replace(r, edits=edits))
    if forked.is_new:
        await api.record("run.fork", forked.run_id, of=ids.text(run_id), at=r.at, edited=", ".join(r.edits))
    return forked


@handles(acts.OVERRIDE)
async def override(api: NamespaceApi, r: OverrideNode) -> None:
    """A failed run of a flow is retried, with the failure of one node replaced."""
    if r.how not in HOW:
        raise InvalidInput(f"a node is overridden by {', '.join(HOW)}, not by {r.how!r}")
    if (r.how == "set") != bool(r.value):
        raise InvalidInput("a node that is set has a value; one that is rerun or skipped has none")
    if r.value:
        _check_values({r.node: r.value})
    run_id = await api.run_id(r.run)
    value = await taken(api, r.value, f"the output of {r.node}", run_id) if r.value else b""
    await RunRetry(api).override(run_id, ev.NodeOverridden(r.node, r.how, value, api.by))
    await api.record("node.override", run_id, node=r.node, how=r.how)


def _check_values(values: dict[str, bytes]) -> None:
    for name, value in values.items():
        if not value.startswith(MARK):
            try:
                msgspec.json.decode(value)
            except (ValueError, RecursionError) as e:
                raise InvalidInput(f"the value of {name!r} is not JSON: {e}") from None
