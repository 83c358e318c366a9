"""How long ended runs are kept, and what is being exported and removed."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import retention as acts
from perdure.core.api.retention import (
    GetRetentionStatus,
    ListPolicies,
    PolicyRef,
    PolicyView,
    RetentionJobView,
    SetPolicy,
)
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.retention_limits import RETENTION_DAYS_MIN
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Limit
from perdure.server.rest.problems import responses

Scope = Literal["everywhere", "namespace", "workflow"]
PolicyName = Annotated[
    str,
    Path(min_length=1, max_length=NAME_CHARS_MAX, description="Of the workflow; `-` for the other scopes."),
]
DAYS_MAX = 36_600


class SetRetentionRequest(m.Body):
    days: Annotated[float, Field(ge=RETENTION_DAYS_MIN, le=DAYS_MAX)] | None = Field(
        description="Days after the end of a run; null: for ever.", examples=[30]
    )


class RetentionPolicy(BaseModel):
    """How long ended runs of a workflow, a namespace or the whole database are kept."""

    scope: Scope
    name: str | None = Field(description="Of the workflow; null for the other scopes.")
    days: float | None = Field(description="Days after the end of a run; null: for ever.")
    updated_at: m.Moment
    updated_by: str


class RetentionPolicies(BaseModel):
    items: list[RetentionPolicy] = Field(description="The widest first; the narrowest that fits a run counts.")
    default_days: float | None = Field(description="Where no policy says otherwise; null: for ever.")


class RetentionRemoval(BaseModel):
    """The removal of the ended runs of one day."""

    id: str = Field(examples=[m.ID])
    day: str = Field(description="The day of its runs, or `rest`: runs of days without a partition.")
    action: Literal["drop", "delete"] = Field(description="`drop`: the day as a whole; `delete`: run by run.")
    status: Literal["exporting", "removing", "done", "abandoned"]
    expected: int = Field(description="Runs that were past their policy when it began.")
    exported: int
    exported_bytes: int
    removed: int
    kept: int = Field(description="Runs of the day that are kept longer, or are active.")
    address: str | None = Field(description="The folder of its export; null: it is not exported.")
    format: Literal["jsonl", "parquet"] | None
    error: str | None
    created_at: m.Moment
    updated_at: m.Moment
    finished_at: m.Moment | None


class RetentionState(BaseModel):
    jobs: list[RetentionRemoval] = Field(description="Newest first.")
    export: str | None = Field(description="Where ended runs are exported to before they are removed; null: nowhere.")


router = APIRouter(tags=["retention"], route_class=GuardedRoute)


@router.get("/retention", responses=responses(401, 403))
async def list_retention(caller: Annotated[RestCaller, asks(acts.LIST)]) -> RetentionPolicies:
    """Policies of this namespace, and that of all namespaces."""
    page = await caller.call(acts.LIST, ListPolicies())
    return RetentionPolicies(items=[_policy(p) for p in page.items], default_days=page.default_days)


@router.put("/retention/{scope}/{name}", responses=responses(401, 403, 409, 422))
async def set_retention(
    caller: Annotated[RestCaller, asks(acts.SET)], scope: Scope, name: PolicyName, body: SetRetentionRequest
) -> RetentionPolicy:
    """Say how long ended runs are kept. It holds for runs that have ended already, too."""
    return _policy(await caller.call(acts.SET, SetPolicy(scope, _name(name), body.days)))


@router.delete("/retention/{scope}/{name}", status_code=204, responses=responses(401, 403, 404, 422))
async def remove_retention(caller: Annotated[RestCaller, asks(acts.REMOVE)], scope: Scope, name: PolicyName) -> None:
    """Remove a policy. The next wider one counts from now on."""
    await caller.call(acts.REMOVE, PolicyRef(scope, _name(name)))


@router.get("/retention-status", responses=responses(401, 403, 422))
async def retention_status(
    caller: Annotated[RestCaller, asks(acts.STATUS)], limit: Limit = LIMIT_DEFAULT
) -> RetentionState:
    """What is being exported and removed, and what was."""
    found = await caller.call(acts.STATUS, GetRetentionStatus(limit))
    return RetentionState(jobs=[_job(job) for job in found.jobs], export=found.export or None)


def _name(name: str) -> str:
    return "" if name == "-" else name


def _policy(p: PolicyView) -> RetentionPolicy:
    scope: Scope = "everywhere" if p.everywhere else "workflow" if p.workflow else "namespace"
    return RetentionPolicy(
        scope=scope,
        name=p.workflow or None,
        days=p.days,
        updated_at=views.moment(p.updated_us),
        updated_by=p.updated_by,
    )


def _job(job: RetentionJobView) -> RetentionRemoval:
    ident = ids.text(job.id)
    return RetentionRemoval.model_validate(
        {
            "id": ident,
            "day": job.name,
            "action": job.action,
            "status": job.status,
            "expected": job.expected,
            "exported": job.exported,
            "exported_bytes": job.exported_bytes,
            "removed": job.removed,
            "kept": job.kept,
            "address": f"{job.address}/{job.name}/{ident}" if job.address and job.exported else None,
            "format": job.format,
            "error": job.error,
            "created_at": views.moment(job.created_us),
            "updated_at": views.moment(job.updated_us),
            "finished_at": views.moment_or_none(job.finished_us),
        }
    )
