"""Approvals and signed links."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.approvals import Standing
from perdure.core.links import Kind

ApprovalPosition = tuple[int, bytes, str]
"""(created, run, name) of the last approval of the page before; (decided, run, name) where decided ones are listed."""
ApprovalState = Literal["open", "decided"]


class ListApprovals(msgspec.Struct, frozen=True):
    assignee: str = ""
    """Those that this name may answer now; `@me` for the caller's own."""
    run: RunRef = ""
    workflow: str = ""
    after: ApprovalPosition | None = None
    limit: int = 50
    state: ApprovalState = "open"
    decided_by: str = ""
    """Those decided or expired that this name has answered; `@me` for the caller's own."""


class ApprovalPage(msgspec.Struct, frozen=True):
    items: list[Standing]
    next: ApprovalPosition | None


class GetApproval(msgspec.Struct, frozen=True):
    run: RunRef
    name: str


class AnswerApproval(msgspec.Struct, frozen=True):
    run: RunRef
    name: str
    is_approved: bool
    value: bytes = b"null"
    """JSON, by the approval's form; a rejection has none."""
    comment: str = ""
    on_behalf_of: str = ""
    """In the name of another person: needs the permission ADMIN."""
    question: str = ""
    """`Standing.question` as it was read. Another one is asked now: the answer is refused with `conflict`. Empty: answers what is asked."""


class DelegateApproval(msgspec.Struct, frozen=True):
    run: RunRef
    name: str
    to: str
    on_behalf_of: str = ""
    question: str = ""
    """As in AnswerApproval."""


class CreateLink(msgspec.Struct, frozen=True):
    run: RunRef
    kind: Kind
    name: str
    who: str = ""
    """Who answers with it; a promise's link may leave it empty."""
    lasts_us: int = 0
    """0: LINK_US_DEFAULT."""


class LinkCreated(msgspec.Struct, frozen=True):
    url: str
    who: str
    expires_us: int


LIST: Act[ListApprovals, ApprovalPage] = Act("approval.list", ListApprovals, ApprovalPage, Permission.READ)
GET: Act[GetApproval, Standing] = Act("approval.get", GetApproval, Standing, Permission.READ)
ANSWER: Act[AnswerApproval, Standing] = Act(
    "approval.answer", AnswerApproval, Standing, Permission.OPERATE, ("approval.approve", "approval.reject")
)
DELEGATE: Act[DelegateApproval, Standing] = Act(
    "approval.delegate", DelegateApproval, Standing, Permission.OPERATE, ("approval.delegate",)
)
CREATE_LINK: Act[CreateLink, LinkCreated] = Act(
    "link.create", CreateLink, LinkCreated, Permission.OPERATE, ("link.create",)
)

ACTS = (LIST, GET, ANSWER, DELEGATE, CREATE_LINK)
