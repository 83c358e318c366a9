"""Rules of flow control that people set while everything runs: limits and rates, and what is paused."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from perdure.core.errors import NotFound
from perdure.core.limits import CONCURRENCY_MAX, NAME_CHARS_MAX, RATE_COUNT_MAX
from perdure.engine.api.flow_control import RateRule, RuleView, shown
from perdure.server.auth.ports import Detail
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Caller, GuardedRoute, Operator, Reader
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses
from perdure.server.rest.workflows import WorkflowName, known

SEPARATOR: Final = "/"

Scope = Literal["namespace", "queue", "workflow", "task"]
RuleName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=NAME_CHARS_MAX,
        description="Of the queue, workflow or task; `-` for the namespace itself.",
    ),
]
QueueName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["io"])]


class Rate(m.Body):
    """So many units within so much time, on average."""

    count: Annotated[float, Field(gt=0, le=RATE_COUNT_MAX)] = Field(examples=[100])
    per: m.Seconds | m.DurationText = Field(default=1.0, description="Seconds, or text such as `1m`.")
    burst: Annotated[float, Field(ge=1, le=RATE_COUNT_MAX)] | None = Field(
        default=None, description="How many may begin at once; what comes in a fifth of a second unless given."
    )


class SetRule(m.Body):
    """All limits of the scope: what is left out is no limit."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"concurrency": 10, "rate": {"count": 100, "per": "1s"}}]}
    )

    concurrency: Annotated[int, Field(ge=1, le=CONCURRENCY_MAX)] | None = Field(default=None, description="At most so many at a time.")  # fmt: skip
    rate: Rate | None = None


class Pause(m.Body):
    reason: Annotated[str, Field(max_length=m.REASON_CHARS_MAX)] = Field(
        default="", description="Shown to everybody whose work waits.", examples=["the bank is down"]
    )


class RateOf(BaseModel):
    count: float
    per_s: float = Field(description="Seconds.")
    burst: float | None


class Rule(BaseModel):
    """What people have set about a namespace, a queue, a workflow or a task."""

    scope: Scope
    name: str | None = Field(description="Null for the namespace itself.")
    concurrency: int | None
    rate: RateOf | None
    paused_at: m.Moment | None
    paused_by: str | None
    pause_reason: str | None
    updated_at: m.Moment
    updated_by: str


router = APIRouter(tags=["rules"], route_class=GuardedRoute)


@router.get("/rules", responses=responses(401, 403, 422))
async def list_rules(caller: Reader, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> m.Page[Rule]:
    """Rules of this namespace, by scope and name."""
    after = (views.read_cursor(cursor, str) or "").replace("\x00", "")
    scope, _, name = after.partition(SEPARATOR)
    found = await caller.server.rulebook.page(caller.ns, (scope, name), limit + 1)
    page = found[:limit]
    more = len(found) > limit
    return m.Page[Rule](
        items=[_shown(r) for r in page],
        next=views.cursor_of(f"{page[-1].scope}{SEPARATOR}{page[-1].name}") if more else None,
    )


@router.put("/rules/{scope}/{name}", responses=responses(401, 403, 404, 422))
async def set_rule(caller: Operator, scope: Scope, name: RuleName, body: SetRule) -> Rule:
    """Limit a namespace, a queue, a workflow or a task. What waits already is held to it as well; what runs goes on."""
    rate = None
    if body.rate is not None:
        rate = RateRule(body.rate.count, views.duration_us(body.rate.per), body.rate.burst)
    made = await caller.server.rulebook.set(caller.ns, scope, name, body.concurrency, rate, caller.principal.subject)
    detail: Detail = {
        "concurrency": made.concurrency,
        "rate": made.rate.count if made.rate else None,
        "per_s": made.rate.per_us / 1e6 if made.rate else None,
    }
    await caller.server.audit(caller.principal, "rule.set", shown(scope, made.name), detail, ns=caller.ns)
    return _shown(made)


@router.delete("/rules/{scope}/{name}", status_code=204, responses=responses(401, 403, 404, 422))
async def clear_rule(caller: Operator, scope: Scope, name: RuleName) -> None:
    """Take limits back. A pause stays: that is what resuming is for."""
    if not await caller.server.rulebook.clear(caller.ns, scope, name, caller.principal.subject):
        raise NotFound(f"no limit is set for {scope}/{name}; GET /api/v1/rules lists what there is")
    await caller.server.audit(caller.principal, "rule.clear", f"{scope}/{name}", ns=caller.ns)


@router.post("/queues/{name}/pause", responses=responses(401, 403, 404, 422))
async def pause_queue(caller: Operator, name: QueueName, body: Pause | None = None) -> Rule:
    """Let no task of a queue begin. Those that run go on; those that are scheduled wait."""
    return await _pause(caller, "queue", name, body)


@router.post("/queues/{name}/resume", status_code=204, responses=responses(401, 403, 404, 422))
async def resume_queue(caller: Operator, name: QueueName) -> None:
    """Let tasks of a queue begin again."""
    await _resume(caller, "queue", name)


@router.post("/workflows/{name}/pause", responses=responses(401, 403, 404, 422))
async def pause_workflow(caller: Operator, name: WorkflowName, body: Pause | None = None) -> Rule:
    """Let no run of a workflow begin, and no task of one. What runs goes on; starts are taken, and wait."""
    await known(caller, name)
    return await _pause(caller, "workflow", name, body)


@router.post("/workflows/{name}/resume", status_code=204, responses=responses(401, 403, 404, 422))
async def resume_workflow(caller: Operator, name: WorkflowName) -> None:
    """Let runs of a workflow, and their tasks, begin again."""
    await _resume(caller, "workflow", name)


async def _pause(caller: Caller, scope: str, name: str, body: Pause | None) -> Rule:
    reason = body.reason if body is not None else ""
    made = await caller.server.rulebook.pause(caller.ns, scope, name, reason, caller.principal.subject)
    await caller.server.audit(caller.principal, f"{scope}.pause", name, {"reason": reason}, ns=caller.ns)
    return _shown(made)


async def _resume(caller: Caller, scope: str, name: str) -> None:
    if not await caller.server.rulebook.unpause(caller.ns, scope, name, caller.principal.subject):
        raise NotFound(f"the {scope} {name!r} is not paused")
    await caller.server.audit(caller.principal, f"{scope}.resume", name, ns=caller.ns)


def _shown(r: RuleView) -> Rule:
    return Rule(
        scope=r.scope,  # type: ignore[arg-type]
        name=r.name or None,
        concurrency=r.concurrency,
        rate=RateOf(count=r.rate.count, per_s=r.rate.per_us / 1e6, burst=r.rate.burst) if r.rate else None,
        paused_at=views.moment_or_none(r.paused_us),
        paused_by=r.paused_by,
        pause_reason=r.pause_reason,
        updated_at=views.moment(r.updated_us),
        updated_by=r.updated_by,
    )
