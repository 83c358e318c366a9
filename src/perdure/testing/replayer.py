"""Replay recorded histories against today's code: does it still take the same path?

    await replay(crawl, histories="tests/histories/*.json")

Histories are exported by `export_history`. Nothing is executed but workflow code: no tasks, no database. So an export has its stored values
in it; blobs stay references, which workflow code cannot read anyway.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import InvalidInput, NondeterminismError, PayloadTooLarge, PerdureError
from perdure.core.limits import EXPORTED_BYTES_MAX
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import Reference, agree, values_of
from perdure.core.run_retry import ENDED_BY_ENGINE, effective
from perdure.sdk.client.handles import Handle
from perdure.sdk.definitions import Workflow
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.wire.codec import history_from_json, history_to_json


async def export_history(handle: Handle[Any]) -> bytes:
    """A run's history as a JSON document, for `replay` and for people. PayloadTooLarge when its stored values have more than
    EXPORTED_BYTES_MAX."""
    history, carrier = await handle.history(), handle._backend.payloads
    size = sum(reference.size for reference in _stored_values(history))
    if size > EXPORTED_BYTES_MAX:
        raise PayloadTooLarge(
            f"the history of run {handle.id} refers to stored values of {size:,} bytes, over the limit "
            f"EXPORTED_BYTES_MAX={EXPORTED_BYTES_MAX:,} of an export; export a run with less data"
        )
    loaded = [ev.Recorded(r.seq, r.at_us, await carrier.resolve_record(r.event)) for r in history]
    return history_to_json(handle.id, loaded)


def _stored_values(history: list[ev.Recorded]) -> list[Reference]:
    return [v for r in history for payload in payloads_of(r.event) for v in values_of(payload)]


async def replay(workflow: Workflow[..., Any], *, histories: str) -> int:
    """Replay every history file that the glob names; returns how many. Raises NondeterminismError for the first that diverges."""
    paths = sorted(glob.glob(histories, recursive=True))
    if not paths:
        raise InvalidInput(f"no history matches {histories!r}; export some with perdure.export_history")
    for path in paths:
        replay_file(workflow, Path(path))
    return len(paths)


def replay_file(workflow: Workflow[..., Any], path: Path) -> None:
    run_id, history = history_from_json(path.read_bytes())
    replay_one(workflow, ids.parse(run_id), history, where=str(path))


def replay_one(workflow: Workflow[..., Any], run_id: bytes, history: list[ev.Recorded], where: str = "") -> None:
    """One history in memory."""
    guards.install()
    started = history[0].event
    if isinstance(started, ev.RunStarted) and started.workflow != workflow.name:
        raise InvalidInput(f"{where}: this history is of workflow {started.workflow!r}, not {workflow.name!r}")
    if _stored_values(history):
        raise InvalidInput(f"{where}: this history refers to stored values; export it with perdure.export_history")
    history = effective(history)
    runtime = WorkflowInstance(run_id, workflow)
    done = runtime.activate(history, replay=True)
    runtime.evict()
    if done.stuck is not None:
        error = runtime.run.journal.mismatch or PerdureError(done.stuck.message)
        error.args = (f"{where}: {error}",)
        raise error
    _check_end(history[-1].event, done.commands, where)


def _check_end(last: ev.Event, commands: list[Any], where: str) -> None:
    """A finished history must be finished by the code as well, in the same way."""
    if not isinstance(last, ev.TERMINAL):
        return
    if isinstance(last, ev.RunTerminated):
        return  # none of its code had a part in it
    closing = commands[-1] if commands else None
    expected, actual = _END[type(last)], type(closing).__name__
    if isinstance(last, ev.RunFailed) and last.failure.code in ENDED_BY_ENGINE:
        return
    if actual != expected:
        raise NondeterminismError(f"{where}: the end of the run", expected, f"{actual} {closing!r}"[:300])
    if isinstance(last, ev.RunSucceeded) and not agree([last.result], [closing.result]):  # type: ignore[union-attr]
        raise NondeterminismError(f"{where}: the result", repr(last.result[:200]), repr(closing.result[:200]))  # type: ignore[union-attr]


_END: dict[type, str] = {
    ev.RunSucceeded: "CompleteRun",
    ev.RunFailed: "FailRun",
    ev.RunCancelled: "CancelRun",
    ev.RunContinued: "ContinueAsNew",
}
