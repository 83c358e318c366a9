"""Every method of the clients, with the act that it asks first. `t` is its timeout. They serve the async and the blocking form."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from perdure import Approval, NamedEvent, Promise, Schedule, Signal, State, Update, workflow

RUN = "0197f000-0000-7000-8000-000000000001"
NOW = datetime(2026, 11, 18, tzinfo=UTC)
Call = Callable[[Any, Any], Any]


def first(items: Any) -> Any:
    """The first item of an iterator of either kind."""
    return anext(items, None) if hasattr(items, "__anext__") else next(items, None)


@workflow(name="surface_flow")
async def surface_flow(n: int) -> int:
    return n


told = Signal("surface_told", str)
answer = Promise("surface_answer", int)
mood = State("surface_mood", 0)
price = Update("surface_price", int, int)
release = Approval("surface_release")
paid = NamedEvent("surface_paid", int)
nightly = Schedule("surface_nightly", surface_flow.bind(1), every="1h")

CLIENT: dict[str, tuple[str, Call]] = {
    "start": ("run.start", lambda c, t: c.start(surface_flow.bind(1), timeout=t)),
    "run": ("run.start", lambda c, t: c.run(surface_flow.bind(1), timeout=t)),
    "get": ("run.status", lambda c, t: c.get(RUN, timeout=t)),
    "signal": ("run.signal", lambda c, t: c.signal(told, RUN, "x", timeout=t)),
    "query": ("run.state", lambda c, t: c.query(mood, RUN, timeout=t)),
    "update": ("run.update", lambda c, t: c.update(price, RUN, 1, timeout=t)),
    "resolve": ("run.resolve", lambda c, t: c.resolve(answer, RUN, 1, timeout=t)),
    "approve": ("approval.answer", lambda c, t: c.approve(release, RUN, timeout=t)),
    "reject": ("approval.answer", lambda c, t: c.reject(release, RUN, timeout=t)),
    "emit": ("event.emit", lambda c, t: c.emit(paid, 1, timeout=t)),
    "list": ("run.list", lambda c, t: c.list(timeout=t)),
    "runs": ("run.list", lambda c, t: first(c.runs(timeout=t))),
    "bulk": ("bulk_job.start", lambda c, t: c.bulk("cancel", "stuck", timeout=t)),
    "deploy": (
        "workflow.deploy",
        lambda c, t: c.deploy({"flow": "surface_x", "tasks": {"a": {"value": 1}}}, timeout=t),
    ),
}
HANDLE: dict[str, tuple[str, Call]] = {
    "status": ("run.status", lambda h, t: h.status(timeout=t)),
    "describe": ("run.status", lambda h, t: h.describe(timeout=t)),
    "cancel": ("run.cancel", lambda h, t: h.cancel(timeout=t)),
    "terminate": ("run.terminate", lambda h, t: h.terminate(timeout=t)),
    "pause": ("run.pause", lambda h, t: h.pause(timeout=t)),
    "resume": ("run.resume", lambda h, t: h.resume(timeout=t)),
    "retry": ("run.retry", lambda h, t: h.retry(timeout=t)),
    "delete": ("run.delete", lambda h, t: h.delete(timeout=t)),
    "rerun": ("run.rerun", lambda h, t: h.rerun(timeout=t)),
    "fork": ("run.fork", lambda h, t: h.fork(1, timeout=t)),
    "override_node": ("node.override", lambda h, t: h.override_node("a", "skip", timeout=t)),
    "signal": ("run.signal", lambda h, t: h.signal(told, "x", timeout=t)),
    "query": ("run.state", lambda h, t: h.query(mood, timeout=t)),
    "update": ("run.update", lambda h, t: h.update(price, 1, timeout=t)),
    "resolve": ("run.resolve", lambda h, t: h.resolve(answer, 1, timeout=t)),
    "approve": ("approval.answer", lambda h, t: h.approve(release, timeout=t)),
    "reject": ("approval.answer", lambda h, t: h.reject(release, timeout=t)),
    "events": ("run.history", lambda h, t: first(h.events(timeout=t))),
    "history": ("run.history", lambda h, t: h.history(timeout=t)),
}
BULK: dict[str, tuple[str, Call]] = {
    "info": ("bulk_job.get", lambda b, t: b.info(timeout=t)),
    "cancel": ("bulk_job.cancel", lambda b, t: b.cancel(timeout=t)),
    "runs": ("bulk_job.runs", lambda b, t: first(b.runs(timeout=t))),
}
SCHEDULES: dict[str, tuple[str, Call]] = {
    "apply": ("schedule.put", lambda s, t: s.apply(nightly, timeout=t)),
    "list": ("schedule.list", lambda s, t: first(s.list(timeout=t))),
    "get": ("schedule.get", lambda s, t: s.get("n", timeout=t)),
    "pause": ("schedule.pause", lambda s, t: s.pause("n", timeout=t)),
    "resume": ("schedule.resume", lambda s, t: s.resume("n", timeout=t)),
    "trigger": ("schedule.trigger", lambda s, t: s.trigger("n", timeout=t)),
    "delete": ("schedule.delete", lambda s, t: s.delete("n", timeout=t)),
    "next": ("schedule.get", lambda s, t: s.next("n", timeout=t)),
    "fires": ("schedule.get", lambda s, t: s.fires("n", timeout=t)),
    "backfill": ("schedule.get", lambda s, t: s.backfill("n", NOW, NOW, timeout=t)),
}
VERSIONS: dict[str, tuple[str, Call]] = {
    "get": ("version.list", lambda v, t: v.get("w", timeout=t)),
    "set_current": ("version.set_current", lambda v, t: v.set_current("w", "1", timeout=t)),
    "rollback": ("version.rollback", lambda v, t: v.rollback("w", timeout=t)),
    "move_runs": ("version.move", lambda v, t: v.move_runs("w", "1", "2", timeout=t)),
}
APPROVALS: dict[str, tuple[str, Call]] = {
    "list": ("approval.list", lambda a, t: first(a.list(timeout=t))),
}
