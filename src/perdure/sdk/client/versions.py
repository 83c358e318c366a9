"""Versions of workflows, through a client."""

from __future__ import annotations

from perdure.core.api import versions as acts
from perdure.core.api.definitions import WorkflowRef
from perdure.core.api.versions import MoveRuns, SetCurrent, WorkflowVersions
from perdure.core.durations import Duration
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.keys import within


class VersionClient:
    """`client.versions`: which version of a workflow new runs get, and which ones still have runs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def get(self, workflow: str, *, timeout: Duration | None = None) -> WorkflowVersions:
        """The versions of a workflow and what uses them. Raises NotRegistered."""
        return await self._backend.call(acts.LIST, WorkflowRef(workflow), within(timeout))

    async def set_current(
        self, workflow: str, version: str, *, ramp_percent: float = 100.0, timeout: Duration | None = None
    ) -> WorkflowVersions:
        """Which version new runs get; with `ramp_percent` only that part of them.

        Args:
            workflow: the name of the workflow.
            version: a version, or the first characters of one. Empty: the newest one, and so on with each that a worker registers.
            ramp_percent: of new runs; the others get the version that is current.
            timeout: how long the call may take.
        """
        wanted = SetCurrent(workflow, version, ramp_percent)
        return await self._backend.call(acts.SET_CURRENT, wanted, within(timeout))

    async def rollback(self, workflow: str, *, timeout: Duration | None = None) -> WorkflowVersions:
        """Go back to the version that was current before."""
        return await self._backend.call(acts.ROLLBACK, WorkflowRef(workflow), within(timeout))

    async def move_runs(self, workflow: str, version: str, to: str, *, timeout: Duration | None = None) -> int:
        """Pin the runs of one version that no worker serves to another one. Returns how many."""
        return (await self._backend.call(acts.MOVE, MoveRuns(workflow, version, to), within(timeout))).runs
