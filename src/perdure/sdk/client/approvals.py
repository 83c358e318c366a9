"""Approvals that wait for an answer, through a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.api import approvals as acts
from perdure.core.api.approvals import ApprovalPosition, ListApprovals
from perdure.core.approvals import Standing
from perdure.core.durations import Duration, datetime_of
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.keys import within

PAGE_APPROVALS: Final = 200
"""Approvals of one page of `list()`."""


class OpenApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A question that a run asks."""

    run_id: str
    name: str
    """`Approval(name)`; a later question of the same run is `name#2`."""
    workflow: str
    question: str
    """Names what is asked. Pass it to `approve` and `reject`, so that your answer counts for this question or is refused."""
    title: str
    description: str
    details: Any
    assignees: tuple[str, ...]
    asked_at: datetime
    deadline: datetime | None


class ApprovalClient:
    """`client.approvals`: questions of runs that are open."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def list(
        self, *, assignee: str = "", workflow: str = "", run: str = "", timeout: Duration | None = None
    ) -> AsyncIterator[OpenApproval]:
        """Open questions, the oldest first.

        Args:
            assignee: those that this name may answer now; `@me` for the caller's own.
            workflow: those of this workflow.
            run: those of this run.
            timeout: of each call, which gets PAGE_APPROVALS questions.
        """
        after: ApprovalPosition | None = None
        while True:
            wanted = ListApprovals(assignee, run, workflow, after, PAGE_APPROVALS)
            page = await self._backend.call(acts.LIST, wanted, within(timeout))
            for one in page.items:
                yield _info(one)
            after = page.next
            if after is None:
                return


def _info(standing: Standing) -> OpenApproval:
    spec = standing.spec
    return OpenApproval(
        run_id=ids.text(standing.run_id),
        name=standing.name,
        workflow=standing.workflow,
        question=standing.question,
        title=spec.title,
        description=spec.description,
        details=spec.details,
        assignees=tuple(standing.answerers),
        asked_at=datetime_of(standing.created_us),
        deadline=None if spec.deadline_us is None else datetime_of(spec.deadline_us),
    )
