"""Acts on versions of workflows. Which version a run gets is decided when it starts (core/versions.py); nothing here touches runs in flight but
`move`."""

from __future__ import annotations

import difflib

import msgspec

from perdure.core.api import versions as acts
from perdure.core.api.definitions import WorkflowRef
from perdure.core.api.versions import MoveRuns, RunsMoved, SetCurrent, VersionUse, WorkflowVersions
from perdure.core.errors import Conflict, InvalidInput, NotRegistered
from perdure.core.limits import RUNS_PER_VERSION_COUNTED_MAX, VERSIONS_MOVED_MAX, VERSIONS_SHOWN_MAX
from perdure.core.work import VERSION_PREFIX, is_flow
from perdure.engine.api.api import NamespaceApi, handles
from perdure.engine.api.definitions import check_commands, compiled_flow, moved
from perdure.engine.api.starts import workflow_of
from perdure.engine.holiday_calendars import ensure_stored
from perdure.flows.model import Flow
from perdure.flows.scheduled import trigger_requests


@handles(acts.LIST)
async def list_versions(api: NamespaceApi, r: WorkflowRef) -> WorkflowVersions:
    await workflow_of(api, r.name)  # NotRegistered
    found = await api.ports.definitions.versions(api.ns, r.name, VERSIONS_SHOWN_MAX, RUNS_PER_VERSION_COUNTED_MAX)
    if found is None:
        raise NotRegistered(f"no workflow {r.name!r} in this namespace")
    return msgspec.structs.replace(found, versions=[_judged(found, v) for v in found.versions])


def _judged(of: WorkflowVersions, v: VersionUse) -> VersionUse:
    is_current = v.version == of.current
    can_drain = not is_current and v.version != of.ramp and not v.runs_pinned and v.kind == "code"
    return msgspec.structs.replace(v, is_current=is_current, can_drain=can_drain)


@handles(acts.SET_CURRENT)
async def set_current(api: NamespaceApi, r: SetCurrent) -> WorkflowVersions:
    """New runs get this version, or a part of them. Runs in flight keep theirs."""
    if not 0 < r.ramp_percent <= 100:
        raise InvalidInput(f"a ramp is more than 0 and at most 100 percent, not {r.ramp_percent:g}")
    before = await list_versions(api, WorkflowRef(r.name))
    if not r.version:
        wanted = await api.ports.definitions.newest_served(api.ns, r.name) or before.current
        await _activate(api, r.name, wanted, automatic=True)
    else:
        wanted = _version(before, r.version)
        if r.ramp_percent < 100 and wanted == before.current:
            raise Conflict(
                f"{wanted} is the current version of {r.name}: all new runs get it; a ramp is to another one"
            )
        if r.ramp_percent < 100:
            await _check_flow(api, r.name, wanted)
            if not await api.ports.definitions.set_ramp(api.ns, r.name, wanted, r.ramp_percent):
                raise Conflict(f"the current version of {r.name} changed at this moment; look at it and try again")
        else:
            await _activate(api, r.name, wanted)
    moved(api, r.name)
    await api.record("version.set_current", r.name, before=before.current, to=wanted, percent=r.ramp_percent)
    return await list_versions(api, WorkflowRef(r.name))


@handles(acts.ROLLBACK)
async def rollback(api: NamespaceApi, r: WorkflowRef) -> WorkflowVersions:
    """End a ramp, or go back to the version that was current before."""
    before = await list_versions(api, r)
    if before.ramp is not None:
        await api.ports.definitions.set_ramp(api.ns, r.name, None, 0.0)
    elif before.previous is not None:
        await _activate(api, r.name, before.previous, rollback=True)
    else:
        raise Conflict(
            f"there is no version of {r.name} to go back to; choose one: perdure versions set-current {r.name} VERSION"
        )
    moved(api, r.name)
    after = await list_versions(api, r)
    await api.record("version.rollback", r.name, before=before.ramp or before.current, to=after.current)
    return after


@handles(acts.MOVE)
async def move(api: NamespaceApi, r: MoveRuns) -> RunsMoved:
    """Their histories are replayed on the other version; a run whose history does not fit is stuck."""
    known = await list_versions(api, WorkflowRef(r.name))
    version, to = _version(known, r.version), _version(known, r.to)
    if is_flow(version) or is_flow(to) or version == to:
        raise InvalidInput(f"runs move from one version of code to another one, not from {version} to {to}")
    if any(v.workers for v in known.versions if v.version == version):
        raise Conflict(f"a worker serves version {version} of {r.name}: its runs can go on. Stop its workers first")
    runs = 0
    while batch := await api.ports.definitions.move_runs(api.ns, r.name, version, to, VERSIONS_MOVED_MAX):
        runs += batch
    await api.record("version.move", r.name, before=version, to=to, runs=runs)
    api.engine.claims.wake()
    api.engine.notifications.send("run")
    return RunsMoved(runs)


async def _activate(
    api: NamespaceApi, name: str, version: str, *, rollback: bool = False, automatic: bool = False
) -> None:
    flow = await _check_flow(api, name, version)
    triggers = trigger_requests(flow) if flow is not None else []
    await ensure_stored(api.engine.scheduler.store, api.ns, [t.spec for t in triggers], api.by)
    done = await api.ports.definitions.set_current(
        api.ns, name, version, triggers=triggers, by=api.by, rollback=rollback, automatic=automatic
    )
    if not done:
        raise NotRegistered(f"the workflow {name!r} has no version {version!r}")


async def _check_flow(api: NamespaceApi, name: str, version: str) -> Flow | None:
    flow = await compiled_flow(api, name, version)
    if flow is not None:
        check_commands(api, flow)
    return flow


def _version(of: WorkflowVersions, wanted: str) -> str:
    """By its name, or by its first characters."""
    known = [v.version for v in of.versions]
    if wanted in known:
        return wanted
    near = [v for v in known if wanted and (v.startswith(wanted) or v.removeprefix(VERSION_PREFIX).startswith(wanted))]
    if len(near) == 1:
        return near[0]
    if near:
        raise Conflict(
            f"{len(near)} versions of {of.name} begin with {wanted!r}: {', '.join(near[:5])}; give more of it"
        )
    meant = difflib.get_close_matches(wanted, known, 3)
    hint = f"did you mean {' or '.join(meant)}?" if meant else f"the current one is {of.current}"
    raise NotRegistered(f"the workflow {of.name!r} has no version {wanted!r}; {hint}")
