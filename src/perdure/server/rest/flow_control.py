"""Limits and pauses that operators set at run time."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from perdure.core import ids
from perdure.core.api import flow_control as acts
from perdure.core.api.flow_control import ListLimitUse, ListRules, PauseScope, RateRule, RuleRef, RuleView, SetRule
from perdure.core.limits import CONCURRENCY_MAX, NAME_CHARS_MAX, RATE_COUNT_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses
from perdure.server.rest.start_requests import WorkflowName

Scope = Literal["namespace", "queue", "workflow", "task"]
LimitName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=NAME_CHARS_MAX,
        description="Of the queue, workflow or task; `-` for the namespace itself.",
    ),
]
QueueName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["io"])]


class RateRequest(m.Body):
    """So many units within so much time, on average."""

    count: Annotated[float, Field(gt=0, le=RATE_COUNT_MAX)] = Field(examples=[100])
    per: m.Seconds | m.DurationText = Field(default=1.0, description="Seconds, or text such as `1m`.")
    burst: Annotated[float, Field(ge=1, le=RATE_COUNT_MAX)] | None = Field(
        default=None, description="How many may begin at once; what comes in a fifth of a second unless given."
    )


class SetLimitRequest(m.Body):
    """All limits of the scope: what is left out is no limit."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"concurrency": 10, "rate": {"count": 100, "per": "1s"}}]}
    )

    concurrency: Annotated[int, Field(ge=1, le=CONCURRENCY_MAX)] | None = Field(
        default=None, description="At most so many at a time."
    )
    rate: RateRequest | None = None


class PauseRequest(m.Body):
    reason: Annotated[str, Field(max_length=m.REASON_CHARS_MAX)] = Field(
        default="", description="Shown with all work that waits for it.", examples=["the bank is down"]
    )


class LimitRate(BaseModel):
    count: float
    per_s: float = Field(description="Seconds.")
    burst: float | None


class HolderOfLimit(BaseModel):
    run_id: str = Field(examples=[m.ID])
    workflow: str
    held: int


class LimitInUse(BaseModel):
    """Who holds a limit, and how much waits for it."""

    key: str = Field(examples=["queue/io"])
    scope: str = Field(
        description="`namespace`, `queue`, `workflow` or `task`; `key` for one that code gave a key of its own."
    )
    name: str | None
    kind: Literal["concurrency", "rate"]
    limit: int | None = Field(description="Null for a rate, and where nothing waits that says how many are allowed.")
    held: int
    waiting: int = Field(description="Tasks and runs, counted up to 10,000.")
    holders: list[HolderOfLimit] = Field(description="Those that hold most first, at most 20.")


class Limits(BaseModel):
    """The limits and the pause of a namespace, a queue, a workflow or a task."""

    scope: Scope
    name: str | None = Field(description="Null for the namespace itself.")
    concurrency: int | None
    rate: LimitRate | None
    paused_at: m.Moment | None
    paused_by: str | None
    pause_reason: str | None
    updated_at: m.Moment
    updated_by: str
    kind: Literal["concurrency", "rate", "pause"] = Field(
        default="concurrency", description="The strictest of what it sets."
    )
    limit: int | None = Field(default=None, description="The concurrency; null for a rate.")
    held: int = Field(default=0, description="Slots of it that are taken.")
    waiting: int = Field(default=0, description="Tasks and runs that wait for it, counted up to 10,000.")
    holders: list[HolderOfLimit] = Field(default=[], description="Runs that hold most of it first, at most 20.")


router = APIRouter(tags=["flow control"], route_class=GuardedRoute)


@router.get("/limits", responses=responses(401, 403, 422))
async def list_limits(
    caller: Annotated[RestCaller, asks(acts.LIST)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[Limits]:
    """Limits and pauses of this namespace, by scope and name."""
    after = views.read_cursor(cursor, tuple[str, str]) or ("", "")
    page = await caller.call(acts.LIST, ListRules(after, limit))
    return m.Page[Limits](items=[_shown(r) for r in page.items], next=views.next_cursor(page.next))


@router.get("/limit-use", responses=responses(401, 403))
async def list_limit_use(caller: Annotated[RestCaller, asks(acts.USE)]) -> m.Page[LimitInUse]:
    """Limits and rates that something holds or waits for, whether they were set here or declared in code; at most 200."""
    found = await caller.call(acts.USE, ListLimitUse())
    return m.Page[LimitInUse](items=[_use(u) for u in found.items], next=None)


@router.put("/limits/{scope}/{name}", responses=responses(401, 403, 404, 422))
async def set_limit(
    caller: Annotated[RestCaller, asks(acts.SET)], scope: Scope, name: LimitName, body: SetLimitRequest
) -> Limits:
    """Limit a namespace, a queue, a workflow or a task. Work that waits already is held to it as well; work that runs continues."""
    rate = None
    if body.rate is not None:
        rate = RateRule(body.rate.count, views.duration_us(body.rate.per), body.rate.burst)
    return _shown(await caller.call(acts.SET, SetRule(scope, name, body.concurrency, rate)))


@router.delete("/limits/{scope}/{name}", status_code=204, responses=responses(401, 403, 404, 422))
async def clear_limit(caller: Annotated[RestCaller, asks(acts.CLEAR)], scope: Scope, name: LimitName) -> None:
    """Remove the limits. A pause stays: resume ends it."""
    await caller.call(acts.CLEAR, RuleRef(scope, name))


@router.post("/queues/{name}/pause", responses=responses(401, 403, 404, 422))
async def pause_queue(
    caller: Annotated[RestCaller, asks(acts.PAUSE)], name: QueueName, body: PauseRequest | None = None
) -> Limits:
    """Start no more tasks of a queue. Running tasks continue; scheduled ones wait."""
    return await _pause(caller, "queue", name, body)


@router.post("/queues/{name}/resume", status_code=204, responses=responses(401, 403, 404, 422))
async def resume_queue(caller: Annotated[RestCaller, asks(acts.RESUME)], name: QueueName) -> None:
    """Start tasks of a queue again."""
    await caller.call(acts.RESUME, RuleRef("queue", name))


@router.post("/workflows/{name}/pause", responses=responses(401, 403, 404, 422))
async def pause_workflow(
    caller: Annotated[RestCaller, asks(acts.PAUSE)], name: WorkflowName, body: PauseRequest | None = None
) -> Limits:
    """Begin no more runs of a workflow, and no tasks of its runs. Starts are accepted, and wait."""
    return await _pause(caller, "workflow", name, body)


@router.post("/workflows/{name}/resume", status_code=204, responses=responses(401, 403, 404, 422))
async def resume_workflow(caller: Annotated[RestCaller, asks(acts.RESUME)], name: WorkflowName) -> None:
    """Begin runs of a workflow, and their tasks, again."""
    await caller.call(acts.RESUME, RuleRef("workflow", name))


async def _pause(caller: RestCaller, scope: str, name: str, body: PauseRequest | None) -> Limits:
    reason = body.reason if body is not None else ""
    return _shown(await caller.call(acts.PAUSE, PauseScope(scope, name, reason)))


def _shown(r: RuleView) -> Limits:
    return Limits(
        scope=r.scope,  # type: ignore[arg-type]
        name=r.name or None,
        concurrency=r.concurrency,
        rate=LimitRate(count=r.rate.count, per_s=r.rate.per_us / 1e6, burst=r.rate.burst) if r.rate else None,
        paused_at=views.moment_or_none(r.paused_us),
        paused_by=r.paused_by,
        pause_reason=r.pause_reason,
        updated_at=views.moment(r.updated_us),
        updated_by=r.updated_by,
        kind="concurrency" if r.concurrency is not None else "rate" if r.rate is not None else "pause",
        limit=r.concurrency,
        held=r.use.held if r.use is not None else 0,
        waiting=r.use.waiting if r.use is not None else 0,
        holders=_holders(r.use) if r.use is not None else [],
    )


def _holders(use: acts.LimitUsage) -> list[HolderOfLimit]:
    return [HolderOfLimit(run_id=ids.text(h.run_id), workflow=h.workflow, held=h.held) for h in use.holders]


def _use(u: acts.LimitUsage) -> LimitInUse:
    scope, _, name = u.key.partition("/")
    is_scope = scope in ("namespace", "queue", "workflow", "task")
    return LimitInUse(
        key=u.key,
        scope=scope if is_scope else "key",
        name=(name or None) if is_scope else u.key,
        kind="concurrency" if u.held or u.limit is not None else "rate",
        limit=u.limit,
        held=u.held,
        waiting=u.waiting,
        holders=_holders(u),
    )
