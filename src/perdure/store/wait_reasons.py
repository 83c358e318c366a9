"""Why runs wait: the rows behind core/wait_reasons.py, for one run and for lists."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core import wait_reasons
from perdure.core.flow_control.admission import Reason
from perdure.core.lifecycle import RunStatus
from perdure.engine.api.ports import SCAN_ROWS_MAX
from perdure.flows.model import is_flow
from perdure.store.queries import queries
from perdure.wire.codec import decode_options

_RECORDED: Final = frozenset({"approval", "signal", "event", "promise", "update", "child", "timer", "task"})
"""Words that are recorded with the run as the first thing it waits for."""
_IN_LINE: Final = frozenset({"limit", "rate", "paused"})
_reason = msgspec.json.Decoder(Reason)


async def waits_of(c: Any, ns: int, run_id: bytes) -> list[wait_reasons.Wait] | None:
    """None for a run that is not active."""
    q = queries()
    r = await c.fetchrow(q["run_waits"], run_id, ns)
    if r is None:
        return None
    if r["stuck"] is not None:
        return [wait_reasons.stuck(r["stuck"])]
    if r["outside"]:
        return [
            wait_reasons.of_reason(_reason.decode(r["reason"]), r["workflow"])
            if r["reason"]
            else wait_reasons.about_to_start(r["workflow"])
        ]
    tasks = [_of_task(t) for t in await c.fetch(q["task_waits"], run_id, ns, wait_reasons.WAITS_MAX)]
    found = [*wait_reasons.decode(r["waits"]), *tasks]
    if not r["owned"] and r["due"] and not r["served"] and not is_flow(r["version"]):
        found.append(wait_reasons.no_code(r["workflow"], r["version"]))
    elif r["status"] == RunStatus.PENDING and not found:
        found.append(wait_reasons.about_to_start(r["workflow"]))
    return wait_reasons.ordered(found)


def _of_task(t: Any) -> wait_reasons.Wait:
    return wait_reasons.of_task(
        wait_reasons.TaskWaiting(
            name=t["name"], queue=t["queue"], node=t["node"] or "", attempt=t["attempt"], lost=t["lost"],
            max_attempts=decode_options(t["options"]).max_attempts, run_at_us=t["run_at"], now_us=t["now"],
            reason=_reason.decode(t["reason"]) if t["reason"] else None, served=t["served"],
        )
    )  # fmt: skip


async def waiting_on(
    c: Any, ns: int, code: str, low: bytes, high: bytes, limit: int
) -> tuple[list[bytes], bytes | None]:
    """Runs that wait for this, newest first, and how far the search got; None: all the way."""
    q = queries()
    if code in _RECORDED:
        rows = await c.fetch(q["waiting_recorded"], ns, low, high, limit, code)
        return [r["run_id"] for r in rows], None
    if code in _IN_LINE:
        rows = await c.fetch(q["waiting_in_line"], ns, low, high, limit, code)
        return [r["run_id"] for r in rows], None
    name, more = {
        "retry": ("waiting_for_retry", ()),
        "no_worker": ("waiting_for_worker", (False,)),
        "slot": ("waiting_for_worker", (True,)),
        "version": ("waiting_for_code", ()),
        "stuck": ("waiting_stuck", ()),
    }.get(code, ("waiting_also", (code,)))
    rows = await c.fetch(q[name], ns, low, high, limit, SCAN_ROWS_MAX, *more)
    found = [r["run_id"] for r in rows if r["run_id"] is not None]
    if code == "slot":  # tasks of fan-outs that wait in memory have no row; their run says so
        noted = await c.fetch(q["waiting_recorded"], ns, low, high, limit, code)
        found = sorted({*found, *(r["run_id"] for r in noted)}, reverse=True)[:limit]
    full = rows and rows[0]["scanned"] >= SCAN_ROWS_MAX
    return found, rows[0]["floor"] if full else None
