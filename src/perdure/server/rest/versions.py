"""Versions of workflows: what uses each, which one new runs get, ramps and rollbacks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from perdure.core.api import versions
from perdure.core.api.definitions import WorkflowRef
from perdure.core.api.versions import MoveRuns, SetCurrent, WorkflowVersions
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.problems import responses
from perdure.server.rest.start_requests import WorkflowName

router = APIRouter(tags=["workflows"], route_class=GuardedRoute)

Version = Annotated[str, Path(min_length=1, max_length=m.VERSION_CHARS_MAX)]


class SetCurrentRequest(m.Body):
    version: Annotated[str, Field(max_length=m.VERSION_CHARS_MAX)] = Field(
        description="A version or its first characters; empty: the newest, and each newer one as workers register it."
    )
    ramp_percent: float = Field(default=100.0, gt=0, le=100, description="The part of new runs that get it.")


class MoveRunsRequest(m.Body):
    to: Annotated[str, Field(min_length=1, max_length=m.VERSION_CHARS_MAX)]


class MovedRuns(BaseModel):
    runs: int


class UsedVersion(BaseModel):
    """A version and what uses it. Runs are counted up to 10,000."""

    version: str
    kind: str
    hash: str | None
    build_id: str | None
    pinned: bool = Field(description="New runs of it stay with it.")
    registered_at: m.Moment
    seen_at: m.Moment | None = Field(description="When a worker last served it.")
    workers: int
    runs_pinned: int = Field(description="Runs in flight that only this version may execute.")
    runs_other: int = Field(description="Other runs in flight that it executes.")
    current: bool
    can_drain: bool = Field(description="Its workers may be stopped.")


class VersionList(BaseModel):
    name: str
    kind: str
    version: str = Field(description="The current one, that new runs get.")
    previous: str | None
    ramp: str | None = Field(description="The version that a part of new runs gets.")
    ramp_percent: float
    by_hand: bool = Field(description="A version that a worker registers does not become current.")
    items: list[UsedVersion]


@router.get("/workflows/{name}/versions", responses=responses(401, 403, 404))
async def list_versions(caller: Annotated[RestCaller, asks(versions.LIST)], name: WorkflowName) -> VersionList:
    """The newest versions of a workflow, with their workers and runs in flight."""
    return _shown(await caller.call(versions.LIST, WorkflowRef(name)))


@router.post("/workflows/{name}/current", responses=responses(401, 403, 404, 409, 413, 422))
async def set_current_version(
    caller: Annotated[RestCaller, asks(versions.SET_CURRENT)], name: WorkflowName, body: SetCurrentRequest
) -> VersionList:
    """Choose the version of new runs, or of a part of them. Runs under way keep theirs."""
    return _shown(await caller.call(versions.SET_CURRENT, SetCurrent(name, body.version, body.ramp_percent)))


@router.post("/workflows/{name}/rollback", responses=responses(401, 403, 404, 409))
async def roll_back_version(caller: Annotated[RestCaller, asks(versions.ROLLBACK)], name: WorkflowName) -> VersionList:
    """End a ramp, or go back to the version that was current before."""
    return _shown(await caller.call(versions.ROLLBACK, WorkflowRef(name)))


@router.post("/workflows/{name}/versions/{version}/move", responses=responses(401, 403, 404, 409, 413, 422))
async def move_runs(
    caller: Annotated[RestCaller, asks(versions.MOVE)], name: WorkflowName, version: Version, body: MoveRunsRequest
) -> MovedRuns:
    """Pin the runs of a version that no worker serves to another one."""
    return MovedRuns(runs=(await caller.call(versions.MOVE, MoveRuns(name, version, body.to))).runs)


def _shown(w: WorkflowVersions) -> VersionList:
    return VersionList(
        name=w.name,
        kind=w.kind,
        version=w.current,
        previous=w.previous,
        ramp=w.ramp,
        ramp_percent=w.ramp_percent,
        by_hand=w.by_hand,
        items=[
            UsedVersion(
                version=v.version,
                kind=v.kind,
                hash=v.hash,
                build_id=v.build_id,
                pinned=v.pinned,
                registered_at=views.moment(v.registered_us),
                seen_at=views.moment_or_none(v.seen_us),
                workers=v.workers,
                runs_pinned=v.runs_pinned,
                runs_other=v.runs_other,
                current=v.is_current,
                can_drain=v.can_drain,
            )
            for v in w.versions
        ],
    )
