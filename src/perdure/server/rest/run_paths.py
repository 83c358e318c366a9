"""Paths of runs: what the runs in flight have done, folded."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import run_paths as acts
from perdure.core.api.run_paths import PATH_PAGE_RUNS_DEFAULT, PATH_SAMPLES_DEFAULT, FindPaths, PathGroup
from perdure.core.limits import NAME_CHARS_MAX, PATH_PAGE_RUNS_MAX, PATH_SAMPLES_MAX
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import Cursor
from perdure.server.rest.problems import responses

router = APIRouter(tags=["runs"], route_class=GuardedRoute)


class RunPathSample(BaseModel):
    id: str
    values: int = Field(description="Class of the values in its history.")
    detail: int = Field(description="Checksum of the values in its history.")


class RunPathItem(BaseModel):
    """Runs of one workflow that have taken the same path."""

    workflow: str
    kind: str = Field(examples=["code"])
    fingerprint: str
    steps: str = Field(examples=["start > task charge > charge ok > timer"])
    runs: int
    versions: dict[str, int] = Field(description="Runs by version.")
    pinned: bool = Field(description="Only workers with their version of the code execute them.")
    pending: list[str] = Field(description="Tasks that are scheduled and have not ended.")
    waits: list[str] = Field(description="Signals and updates that the code waits for.", examples=[["signal:paid"]])
    samples: list[RunPathSample]


class UnreadableHistory(BaseModel):
    id: str
    workflow: str
    why: str


class RunPathPage(BaseModel):
    """Paths of one page of runs. The same path may be on other pages; `next` is null at the end."""

    items: list[RunPathItem]
    unreadable: list[UnreadableHistory] = Field(description="Runs whose history cannot be decoded.")
    next: str | None = Field(description="Pass it as `cursor` to go on; null when there is no more.")


@router.get("/run-paths", responses=responses(401, 403, 422))
async def list_run_paths(
    caller: Annotated[RestCaller, asks(acts.PATHS)],
    workflow: Annotated[
        list[Annotated[str, Query(min_length=1, max_length=NAME_CHARS_MAX)]],
        Query(max_length=100, description="Only these workflows."),
    ] = [],  # noqa: B006
    since: Annotated[
        str | None,
        Query(max_length=50, description="Created at this time or later; a time, or how long ago.", examples=["24h"]),
    ] = None,
    ended: Annotated[bool, Query(description="Runs of one workflow that have ended, instead of active ones.")] = False,
    limit: Annotated[int, Query(ge=1, le=PATH_PAGE_RUNS_MAX, description="Runs to look at.")] = PATH_PAGE_RUNS_DEFAULT,
    samples: Annotated[
        int, Query(ge=1, le=PATH_SAMPLES_MAX, description="Runs to name of each path.")
    ] = PATH_SAMPLES_DEFAULT,
    cursor: Cursor = None,
) -> RunPathPage:
    """Paths that runs have taken, with some runs of each."""
    request = FindPaths(
        workflows=tuple(workflow),
        since_us=views.read_moment(since, "since", caller.now_us),
        ended=ended,
        below=views.read_id_cursor(cursor),
        limit=limit,
        samples=samples,
    )
    page = await caller.call(acts.PATHS, request)
    unreadable = [UnreadableHistory(id=ids.text(u.run_id), workflow=u.workflow, why=u.why) for u in page.unreadable]
    return RunPathPage(items=[_path(g) for g in page.items], unreadable=unreadable, next=views.next_cursor(page.next))


def _path(g: PathGroup) -> RunPathItem:
    return RunPathItem(
        workflow=g.workflow,
        kind=g.kind,
        fingerprint=g.fingerprint.hex(),
        steps=g.steps,
        runs=g.runs,
        versions=g.versions,
        pinned=g.pinned,
        pending=list(g.pending),
        waits=list(g.waits),
        samples=[RunPathSample(id=ids.text(s.run_id), values=s.values, detail=s.detail) for s in g.samples],
    )
