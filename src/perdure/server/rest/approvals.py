"""Approvals: the inbox, answers, delegation, signed links, and the page that a link leads to.

A link page needs no credential: the token is one, for one answer. Reading the page has no effect; an answer uses the link up. Every invalid
token is answered with 404 and no details.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import approvals as acts
from perdure.core.api.approvals import (
    AnswerApproval,
    ApprovalPosition,
    ApprovalState,
    CreateLink,
    DelegateApproval,
    GetApproval,
    ListApprovals,
)
from perdure.core.api.texts import check_text
from perdure.core.approvals import Standing
from perdure.core.calls import encode_json
from perdure.core.errors import InvalidInput, PerdureError, RateLimited
from perdure.core.limits import COMMENT_CHARS_MAX, LINK_CHARS_MAX, NAME_CHARS_MAX
from perdure.core.links import Link
from perdure.core.questions import QUESTION_CHARS
from perdure.engine.api.approvals import Ballot, Links
from perdure.server.auth.addresses import client_of
from perdure.server.auth.rates import Buckets
from perdure.server.context import Server
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.answer_form import Fields, fields_of, read_fields
from perdure.server.rest.guard import Anyone, GuardedRoute, RestCaller, asks, parse_json
from perdure.server.rest.pages import PageRoute, render
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import problem_of, responses
from perdure.server.rest.runs import RunName

FORM_TYPE: Final = "application/x-www-form-urlencoded"
FORM_FIELDS_MAX: Final = 200
"""Fields of a form that is sent from a link's page."""
LINKS_PER_S: Final = 20.0
LINKS_BURST: Final = 100.0
"""Requests for links from one address: so many at once, then so many a second."""

ApprovalName = Annotated[
    str, Path(min_length=1, max_length=NAME_CHARS_MAX, description="The approval's name; may contain `/`.")
]
PromiseName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, description="The promise's name.")]
Token = Annotated[str, Path(min_length=1, max_length=LINK_CHARS_MAX)]
As = Annotated[
    m.Name | None,
    Field(default=None, alias="as", description="In whose name; for administrators. Your own unless given."),
]

Question = Annotated[
    str,
    Field(
        max_length=QUESTION_CHARS,
        description="The approval's `question` as you read it. If the run asks something else now, the answer is `conflict`.",
        examples=["9f86d081884c7d65"],
    ),
]

router = APIRouter(tags=["approvals"], route_class=GuardedRoute)


class GivenVote(BaseModel):
    who: str = Field(examples=["ada"])
    approved: bool
    comment: str
    via: str = Field(description="rest, cli, link or sdk.")
    at: m.Moment


class ApprovalInfo(BaseModel):
    """An approval and its state."""

    run_id: str = Field(examples=[m.ID])
    name: str = Field(examples=["publish"])
    question: str = Field(
        description="Names what is asked. Give it back with an answer: if the run asks something else by then, the answer is refused.",
        examples=["9f86d081884c7d65"],
    )
    workflow: str
    key: str | None = Field(description="The key that the run's starter gave it.")
    url: str = Field(description="The page of the run.")
    status: Literal["open", "approved", "rejected", "resolved", "expired"]
    title: str = Field(examples=["Publish 1,204 rows?"])
    description: str
    details: Any = Field(description="What the run shows to people, any JSON.")
    form: dict[str, Any] | None = Field(description="JSON Schema of the value that a yes brings along.")
    assignees: list[str] = Field(description="Who is asked; empty: anyone who may operate runs.")
    answerers: list[str] = Field(description="Who may answer now: the assignees, and once it has escalated those too.")
    quorum: int = Field(description="So many have to say yes.")
    reject_quorum: int = Field(description="So many have to say no.")
    votes: list[GivenVote]
    created_at: m.Moment
    decided_at: m.Moment | None = Field(description="When it was decided, or its deadline passed.")
    deadline_at: m.Moment | None
    escalate_at: m.Moment | None
    escalate_to: list[str]


class AnswerApprovalRequest(m.Body):
    value: Any = Field(default=None, description="By the approval's form; a no brings none along.")
    comment: Annotated[str, Field(max_length=COMMENT_CHARS_MAX)] = ""
    question: Question = ""
    as_: As


class DelegateApprovalRequest(m.Body):
    to: m.Name = Field(description="Who is asked instead.", examples=["grace"])
    question: Question = ""
    as_: As


class CreateLinkRequest(m.Body):
    who: m.Name = Field(description="Who answers with it; one of those who are asked.", examples=["ada"])
    expires_in: m.Seconds | m.DurationText | None = Field(
        default=None, description="Seconds, or text such as `2d`; seven days unless given."
    )
    decision: Literal["approve", "reject"] | None = Field(
        default=None, description="What the page offers first; the other one stays possible."
    )


class CreatePromiseLinkRequest(m.Body):
    who: m.Name | None = Field(default=None, description="For the audit log.")
    expires_in: m.Seconds | m.DurationText | None = Field(
        default=None, description="Seconds, or text such as `2d`; seven days unless given."
    )


class AnswerLink(BaseModel):
    """Anyone who has the address can answer with it, once."""

    url: str
    who: str
    expires_at: m.Moment


class AskedByLink(BaseModel):
    """What a link asks for."""

    kind: Literal["approval", "promise"]
    name: str
    who: str
    expires_at: m.Moment
    approval: ApprovalInfo | None


def view_of(s: Standing, public_url: str) -> ApprovalInfo:
    run_id = ids.text(s.run_id)
    return ApprovalInfo(
        run_id=run_id,
        name=s.name,
        question=s.question,
        workflow=s.workflow,
        key=views.own_key(s.key),
        url=f"{public_url}/runs/{run_id}",
        status=s.status,
        title=s.spec.title,
        description=s.spec.description,
        details=s.spec.details,
        form=s.spec.form,
        assignees=s.assignees,
        answerers=s.answerers,
        quorum=s.spec.quorum,
        reject_quorum=s.spec.reject_quorum,
        created_at=views.moment(s.created_us),
        decided_at=views.moment_or_none(s.decided_us),
        deadline_at=views.moment_or_none(s.spec.deadline_us),
        escalate_at=views.moment_or_none(s.spec.escalate_us),
        escalate_to=s.escalate_to,
        votes=[
            GivenVote(who=v.who, approved=v.approved, comment=v.comment, via=v.via, at=views.moment(v.at_us))
            for v in s.votes
        ],
    )


class ApprovalQuery:
    """Query parameters that say which approvals are meant."""

    def __init__(
        self,
        state: Annotated[
            ApprovalState,
            Query(description="Open ones; or those that were decided or have expired within the last 30 days."),
        ] = "open",
        assignee: Annotated[
            str | None,
            Query(max_length=NAME_CHARS_MAX, description="Those that this name may answer now; `@me` for your own."),
        ] = None,
        run: Annotated[str | None, Query(max_length=NAME_CHARS_MAX, description="Open ones of one run.")] = None,
        workflow: Annotated[str | None, Query(max_length=NAME_CHARS_MAX)] = None,
        decided_by: Annotated[
            str | None,
            Query(
                max_length=NAME_CHARS_MAX,
                description="Of those that were decided: this name has answered; `@me` for your own.",
            ),
        ] = None,
    ) -> None:
        self.wanted = ListApprovals(
            assignee=assignee or "", run=run or "", workflow=workflow or "", state=state, decided_by=decided_by or ""
        )


@router.get("/approvals", responses=responses(401, 403, 404, 422))
async def list_approvals(
    caller: Annotated[RestCaller, asks(acts.LIST)],
    query: Annotated[ApprovalQuery, Depends()],
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[ApprovalInfo]:
    """Open approvals, oldest first; or with `state=decided` those that were decided or have expired lately, latest first."""
    wanted = msgspec.structs.replace(query.wanted, after=_position(cursor), limit=limit)
    page = await caller.call(acts.LIST, wanted)
    return m.Page[ApprovalInfo](
        items=[view_of(s, caller.api.api.public_url) for s in page.items], next=views.next_cursor(page.next)
    )


def _position(text: str | None) -> ApprovalPosition | None:
    found = views.read_cursor(text, tuple[int, bytes, str])
    if found is not None:
        check_text(found[2])
        if len(found[1]) != 16 or not 0 <= found[0] < 1 << 60:
            raise views.no_cursor()
    return found


@router.get("/approvals/{id}/{name:path}", responses=responses(401, 403, 404, 409, 422))
async def get_approval(caller: Annotated[RestCaller, asks(acts.GET)], id: RunName, name: ApprovalName) -> ApprovalInfo:
    """One approval of a run, open or decided. It is gone once the run has ended; the history and the audit log remain."""
    return view_of(await caller.call(acts.GET, GetApproval(id, name)), caller.api.api.public_url)


@router.post("/approvals/{id}/{name:path}/approve", responses=responses(401, 403, 404, 409, 413, 422))
async def approve(
    caller: Annotated[RestCaller, asks(acts.ANSWER)], id: RunName, name: ApprovalName, body: AnswerApprovalRequest
) -> ApprovalInfo:
    """Approve. The answer counts with those of others; the approval is returned as it stands then."""
    return await _answer(caller, id, name, body, is_approved=True)


@router.post("/approvals/{id}/{name:path}/reject", responses=responses(401, 403, 404, 409, 413, 422))
async def reject(
    caller: Annotated[RestCaller, asks(acts.ANSWER)], id: RunName, name: ApprovalName, body: AnswerApprovalRequest
) -> ApprovalInfo:
    """Reject."""
    return await _answer(caller, id, name, body, is_approved=False)


async def _answer(
    caller: RestCaller, id: str, name: str, body: AnswerApprovalRequest, *, is_approved: bool
) -> ApprovalInfo:
    value = encode_json(body.value)
    answer = AnswerApproval(id, name, is_approved, value, body.comment, body.as_ or "", body.question)
    return view_of(await caller.call(acts.ANSWER, answer), caller.api.api.public_url)


@router.post("/approvals/{id}/{name:path}/delegate", responses=responses(401, 403, 404, 409, 413, 422))
async def delegate(
    caller: Annotated[RestCaller, asks(acts.DELEGATE)], id: RunName, name: ApprovalName, body: DelegateApprovalRequest
) -> ApprovalInfo:
    """Ask another person instead of you."""
    after = await caller.call(acts.DELEGATE, DelegateApproval(id, name, body.to, body.as_ or "", body.question))
    return view_of(after, caller.api.api.public_url)


@router.post("/approvals/{id}/{name:path}/links", status_code=201, responses=responses(401, 403, 404, 409, 413, 422))
async def create_approval_link(
    caller: Annotated[RestCaller, asks(acts.CREATE_LINK)], id: RunName, name: ApprovalName, body: CreateLinkRequest
) -> AnswerLink:
    """A page where one person can answer, once and without a credential. Only administrators create one for another person."""
    made = await _create_link(caller, CreateLink(id, "approval", name, body.who, views.duration_us(body.expires_in)))
    return made.model_copy(update={"url": f"{made.url}?decision={body.decision}"}) if body.decision else made


@router.post(
    "/runs/{id}/promises/{name:path}/links", status_code=201, responses=responses(401, 403, 404, 409, 413, 422)
)
async def create_promise_link(
    caller: Annotated[RestCaller, asks(acts.CREATE_LINK)],
    id: RunName,
    name: PromiseName,
    body: CreatePromiseLinkRequest,
) -> AnswerLink:
    """A page where a promise can be given its value, once and without a credential, by anyone who has its address."""
    return await _create_link(
        caller, CreateLink(id, "promise", name, body.who or "", views.duration_us(body.expires_in))
    )


async def _create_link(caller: RestCaller, wanted: CreateLink) -> AnswerLink:
    made = await caller.call(acts.CREATE_LINK, wanted)
    return AnswerLink(url=made.url, who=made.who, expires_at=views.moment(made.expires_us))


class LinkRoute(PageRoute):
    """Takes what a form of the page sends, beside JSON. Refusals are pages for people and problems for programs."""

    takes_any_query = True  # programs that deliver links add parameters of their own

    def parse(self, request: Request, body: bytes) -> Any:
        if not request.headers.get("content-type", "").lower().startswith(FORM_TYPE):
            return parse_json(body)
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, encoding="utf-8")
        except ValueError as e:
            raise InvalidInput(f"the form cannot be read: {e}") from None
        for name, value in pairs:
            check_text(name)
            check_text(value)
        return SentForm(dict(pairs))

    def refused(self, request: Request, error: PerdureError) -> Response:
        if _wants_json(request):
            return problem_of(request, error)
        return super().refused(request, error)


class SentForm(msgspec.Struct, frozen=True):
    """What came from the page, by field."""

    fields: dict[str, str]


links = APIRouter(include_in_schema=False, route_class=LinkRoute)


@links.get("/links/{token}")
async def link_page(
    _: Anyone, request: Request, token: Token, decision: Annotated[str, Query(max_length=10)] = ""
) -> Response:
    """Show the question of a link. Reading it has no effect."""
    server, links_, link = await _opened(request, token)
    asked = await links_.asked(link)
    if _wants_json(request):
        return _json(_asked(link, asked, server.api.public_url))
    return _page(link, asked, server, reject_first=decision == "reject")


@links.post("/links/{token}")
async def use_link(_: Anyone, request: Request, token: Token) -> Response:
    """Answer, once."""
    server, links_, link = await _opened(request, token)
    sent = request.state.value
    asked = await links_.asked(link)
    try:
        ballot = _from_form(sent.fields, link, asked) if isinstance(sent, SentForm) else _from_json(sent, link)
        after = await links_.answer(link, ballot)
    except InvalidInput as e:
        if isinstance(sent, SentForm) and not _wants_json(request):  # nothing is lost: the link still works
            return _page(link, asked, server, error=str(e), given=sent.fields, status=422)
        raise
    if _wants_json(request):
        return _json(_asked(link, after, server.api.public_url))
    return render(
        "linked.html", link=link, approved=ballot.approved, view=after and view_of(after, server.api.public_url)
    )


async def _opened(request: Request, token: str) -> tuple[Server, Links, Link]:
    server: Server = request.app.state.server
    rates: Buckets = request.app.state.link_rates
    wait = rates.take(client_of(request.client.host) if request.client else "", LINKS_PER_S, LINKS_BURST)
    if wait:
        raise RateLimited(f"too many requests for links from this address: wait {wait:.1f} s", wait)
    links_ = Links(server.api)
    return server, links_, await links_.read(token)


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def _asked(link: Link, asked: Standing | None, public_url: str) -> AskedByLink:
    return AskedByLink(
        kind=link.kind,
        name=link.name,
        who=link.who,
        expires_at=views.moment(link.expires_us),
        approval=view_of(asked, public_url) if asked else None,
    )


def _json(body: BaseModel) -> JSONResponse:
    return JSONResponse(body.model_dump(mode="json"))


def _page(
    link: Link,
    asked: Standing | None,
    server: Server,
    *,
    reject_first: bool = False,
    error: str = "",
    given: dict[str, str] | None = None,
    status: int = 200,
) -> HTMLResponse:
    view = view_of(asked, server.api.public_url) if asked is not None else None
    fields: Fields = fields_of(asked.spec.form) if asked is not None else []
    return render(
        "link.html",
        link=link,
        view=view,
        fields=fields,
        given=given or {},
        sent=given is not None,
        error=error,
        reject_first=reject_first,
        expires_at=views.moment(link.expires_us),
        status_code=status,
    )


def _from_form(given: dict[str, str], link: Link, asked: Standing | None) -> Ballot:
    comment = given.get("comment", "")
    if asked is None:
        return Ballot(True, _value(given.get("value", "")), comment)
    answer = given.get("answer")
    if answer not in ("approve", "reject"):
        raise InvalidInput("the form says neither approve nor reject: press one of the buttons")
    value = read_fields(asked.spec.form, given) if answer == "approve" else None
    return Ballot(answer == "approve", value, comment)


def _value(text: str) -> Any:
    """JSON where it is JSON, otherwise the text itself."""
    try:
        return parse_json(text.encode())
    except InvalidInput:
        return text


def _from_json(sent: Any, link: Link) -> Ballot:
    try:
        body = msgspec.convert(sent, LinkAnswer)
    except msgspec.ValidationError as e:
        raise InvalidInput(f"the body is no answer: {e}; send approved, value and comment") from None
    if link.kind == "approval" and body.approved is None:
        raise InvalidInput("the body does not say `approved`: true or false")
    return Ballot(body.approved is not False, body.value, body.comment)


class LinkAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    approved: bool | None = None
    value: Any = None
    comment: str = ""
