"""Why runs wait: the rows behind core/wait_reasons.py, for one run and for lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core import wait_reasons
from perdure.core.flow_control.admission import QueueReason
from perdure.engine.api.ports import SCAN_ROWS_MAX
from perdure.store.queries import fetch
from perdure.wire.codec import decode_options

_RECORDED: Final = frozenset({"approval", "signal", "event", "promise", "update", "child", "timer", "task"})
"""Wait reasons that are recorded with the run."""
_FLOW_CONTROL: Final = frozenset({"limit", "rate", "paused"})
_SCANS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "retry": ("runs_waiting_for_retry", {}),
    "no_worker": ("runs_waiting_for_worker", {"served": False}),
    "slot": ("runs_waiting_for_worker", {"served": True}),
    "version": ("runs_waiting_for_code", {"pinned": False}),
    "no_worker_for_version": ("runs_waiting_for_code", {"pinned": True}),
    "stuck": ("stuck_run_ids", {}),
}
_reason = msgspec.json.Decoder(QueueReason)


async def waits_of(c: Any, ns: int, run_id: bytes) -> list[wait_reasons.WaitReason] | None:
    """None for a run that is not active."""
    return (await waits_of_runs(c, ns, [run_id])).get(run_id)


async def waits_of_runs(c: Any, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, list[wait_reasons.WaitReason]]:
    """Of those that are active."""
    if not run_ids:
        return {}
    tasks: defaultdict[bytes, list[Any]] = defaultdict(list)
    rows = await fetch(c, "run_wait_reasons", run_ids=list(run_ids), ns=ns)
    working = [r["run_id"] for r in rows if not r["is_queued"]]
    for t in await fetch(c, "task_wait_reasons", run_ids=working, ns=ns, limit=wait_reasons.WAITS_MAX):
        tasks[t["run_id"]].append(t)
    return {r["run_id"]: _waits(r, tasks[r["run_id"]]) for r in rows}


def _waits(r: Any, waiting: Sequence[Any]) -> list[wait_reasons.WaitReason]:
    if r["stuck"] is not None or r["paused_by"] is not None:
        paused = [wait_reasons.run_paused(r["paused_by"], r["pause_reason"])] if r["paused_by"] is not None else []
        return [*paused, *([wait_reasons.stuck(r["stuck"])] if r["stuck"] is not None else [])]
    if r["status"] == "pending" and r["start_at"] is not None and r["start_at"] > r["now"]:
        return [wait_reasons.start_time(r["start_at"])]
    if r["is_queued"]:
        return [
            wait_reasons.of_reason(_reason.decode(r["reason"]), r["workflow"])
            if r["reason"]
            else wait_reasons.about_to_start(r["workflow"])
        ]
    found = [*wait_reasons.decode(r["wait_reasons"]), *map(_of_task, waiting)]
    if not r["owned"] and r["due"] and not r["served"] and r["kind"] == "code":
        if r["pin"]:  # what its code waited for when it slept says nothing any more
            return [wait_reasons.no_version(r["workflow"], r["pin"])]
        found.append(wait_reasons.no_code(r["workflow"], r["version"]))
    elif r["status"] == "pending" and not found:
        found.append(wait_reasons.about_to_start(r["workflow"]))
    return wait_reasons.ordered(found)


def _of_task(t: Any) -> wait_reasons.WaitReason:
    return wait_reasons.of_task(
        wait_reasons.TaskWaiting(
            name=t["name"],
            queue=t["queue"],
            node=t["node"] or "",
            attempt=t["attempt"],
            lost=t["lost"],
            max_attempts=decode_options(t["options"]).max_attempts,
            run_at_us=t["run_at"],
            now_us=t["now"],
            reason=_reason.decode(t["reason"]) if t["reason"] else None,
            served=t["served"],
        )
    )


async def waiting_on(
    c: Any, ns: int, code: str, low: bytes, high: bytes, limit: int
) -> tuple[list[bytes], bytes | None]:
    """Runs with this wait reason, newest first, and how far the search got; None: complete."""
    if code in _RECORDED:
        rows = await fetch(c, "runs_waiting_first_for", ns=ns, low=low, high=high, limit=limit, reason=code)
        return [r["run_id"] for r in rows], None
    if code in _FLOW_CONTROL:
        rows = await fetch(c, "runs_waiting_for_flow_control", ns=ns, low=low, high=high, limit=limit, reason=code)
        return [r["run_id"] for r in rows], None
    name, more = _SCANS.get(code, ("runs_waiting_also_for", {"reason": code}))
    rows = await fetch(c, name, ns=ns, low=low, high=high, limit=limit, scan_limit=SCAN_ROWS_MAX, **more)
    found = [r["run_id"] for r in rows if r["run_id"] is not None]
    if code == "slot":  # tasks of fan-outs that wait in memory have no row; their run says so
        first = await fetch(c, "runs_waiting_first_for", ns=ns, low=low, high=high, limit=limit, reason=code)
        found = sorted({*found, *(r["run_id"] for r in first)}, reverse=True)[:limit]
    full = rows and rows[0]["scanned"] >= SCAN_ROWS_MAX
    return found, rows[0]["floor"] if full else None
