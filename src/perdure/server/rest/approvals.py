"""Approvals: the inbox, answers, delegation, signed links, and the page that a link leads to.

A link page needs no credential: the token is one, for one answer. Looking has no effect; the answer uses the link up. Whatever is wrong with a
token that we did not sign is answered with 404 and no more.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.approvals import Standing, Via
from perdure.core.durations import to_us
from perdure.core.errors import InvalidInput, PerdureError, RateLimited
from perdure.core.limits import COMMENT_CHARS_MAX, LINK_CHARS_MAX, NAME_CHARS_MAX
from perdure.core.links import Kind, Link
from perdure.engine.api.approvals import Actor, After, Ballot, link_url
from perdure.engine.api.runs import UseCases
from perdure.server.auth.addresses import client_of
from perdure.server.auth.rates import Buckets
from perdure.server.context import Server
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.answer_form import Fields, fields_of, read_fields
from perdure.server.rest.guard import Anyone, Caller, GuardedRoute, Operator, Reader, check_text, parse_json
from perdure.server.rest.pages import PageRoute, render
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import problem_of, responses
from perdure.server.rest.run_lookup import RunName, resolve

ME: Final = "@me"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
FORM_FIELDS_MAX: Final = 200
"""Fields of a form that is sent from a link's page."""
LINKS_PER_S: Final = 20.0
LINKS_BURST: Final = 100.0
"""Requests for links from one address: so many at once, then so many a second."""
CLI: Final = "perdure-cli/"

ApprovalName = Annotated[
    str, Path(min_length=1, max_length=NAME_CHARS_MAX, description="The approval's name; may contain `/`.")
]
PromiseName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, description="The promise's name.")]
Token = Annotated[str, Path(min_length=1, max_length=LINK_CHARS_MAX)]
As = Annotated[
    m.Name | None,
    Field(default=None, alias="as", description="In whose name; for administrators. Your own unless given."),
]

router = APIRouter(tags=["approvals"], route_class=GuardedRoute)


# -- what goes over the wire ---------------------------------------------------------------------------------------


class GivenVote(BaseModel):
    who: str = Field(examples=["ada"])
    approved: bool
    comment: str
    via: str = Field(description="rest, cli, link or sdk.")
    at: m.Moment


class ApprovalView(BaseModel):
    """A question to people, and how it stands."""

    run_id: str = Field(examples=[m.ID])
    name: str = Field(examples=["publish"])
    workflow: str
    key: str | None = Field(description="The id that the run's starter gave it.")
    url: str = Field(description="The page of the run.")
    status: Literal["open", "approved", "rejected", "resolved", "expired"]
    title: str = Field(examples=["Publish 1,204 rows?"])
    description: str
    details: Any = Field(description="What the run shows to people, any JSON.")
    form: dict[str, Any] | None = Field(description="JSON Schema of the value that a yes brings along.")
    assignees: list[str] = Field(description="Who is asked; empty: whoever may operate runs.")
    answerers: list[str] = Field(description="Who may answer now: the assignees, and once it has escalated those too.")
    quorum: int = Field(description="So many have to say yes.")
    reject_quorum: int = Field(description="So many have to say no.")
    votes: list[GivenVote]
    created_at: m.Moment
    deadline_at: m.Moment | None
    escalate_at: m.Moment | None
    escalate_to: list[str]


class AnswerApproval(m.Body):
    value: Any = Field(default=None, description="By the approval's form; a no brings none along.")
    comment: Annotated[str, Field(max_length=COMMENT_CHARS_MAX)] = ""
    as_: As


class DelegateApproval(m.Body):
    to: m.Name = Field(description="Who is asked instead.", examples=["grace"])
    as_: As


class MakeLink(m.Body):
    who: m.Name = Field(description="Who answers with it; one of those who are asked.", examples=["ada"])
    expires_in: m.Seconds | m.DurationText | None = Field(
        default=None, description="Seconds, or text such as `2d`; seven days unless given."
    )
    decision: Literal["approve", "reject"] | None = Field(
        default=None, description="What the page offers first; the other one stays possible."
    )


class MakePromiseLink(m.Body):
    who: m.Name | None = Field(default=None, description="For the audit log.")
    expires_in: m.Seconds | m.DurationText | None = Field(
        default=None, description="Seconds, or text such as `2d`; seven days unless given."
    )


class LinkView(BaseModel):
    """Whoever has the address can answer with it, once."""

    url: str
    who: str
    expires_at: m.Moment


class AskedByLink(BaseModel):
    """What a link asks for."""

    kind: Literal["approval", "promise"]
    name: str
    who: str
    expires_at: m.Moment
    approval: ApprovalView | None


def view_of(s: Standing, public_url: str) -> ApprovalView:
    run_id = ids.text(s.run_id)
    return ApprovalView(
        run_id=run_id, name=s.name, workflow=s.workflow, key=views.own_key(s.key), url=f"{public_url}/runs/{run_id}", status=s.status, title=s.spec.title,
        description=s.spec.description, details=s.spec.details, form=s.spec.form, assignees=s.assignees, answerers=s.answerers,
        quorum=s.spec.quorum, reject_quorum=s.spec.reject_quorum, created_at=views.moment(s.created_us),
        deadline_at=views.moment_or_none(s.spec.deadline_us), escalate_at=views.moment_or_none(s.spec.escalate_us), escalate_to=s.escalate_to,
        votes=[
            GivenVote(who=v.who, approved=v.approved, comment=v.comment, via=v.via, at=views.moment(v.at_us)) for v in s.votes
        ],
    )  # fmt: skip


# -- the inbox -----------------------------------------------------------------------------------------------------


@router.get("/approvals", responses=responses(401, 403, 404, 422))
async def list_approvals(
    caller: Reader,
    assignee: Annotated[
        str | None,
        Query(max_length=NAME_CHARS_MAX, description="Those that this name may answer now; `@me` for your own."),
    ] = None,
    run: Annotated[str | None, Query(max_length=NAME_CHARS_MAX, description="Those of one run.")] = None,
    workflow: Annotated[str | None, Query(max_length=NAME_CHARS_MAX)] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[ApprovalView]:
    """Open approvals, oldest first."""
    approvals, url = caller.server.approvals, caller.server.public_url
    names: tuple[str, ...] | None = None
    if assignee:
        names = await approvals.names(caller.principal) if assignee == ME else (assignee,)
    if run:
        of_run = await approvals.of_run(caller.use, await resolve(caller, run))
        mine = [s for s in of_run if names is None or not s.assignees or any(n in s.answerers for n in names)]
        return m.Page[ApprovalView](items=[view_of(s, url) for s in mine[:limit]], next=None)
    page = await approvals.page(caller.use, names, workflow or None, _read_cursor(cursor), limit)
    following = None if page.next is None else views.cursor_of(page.next)
    return m.Page[ApprovalView](items=[view_of(s, url) for s in page.items], next=following)


def _read_cursor(text: str | None) -> After | None:
    found = views.read_cursor(text, tuple[int, bytes, str])
    if found is not None:
        check_text(found[2])
        if len(found[1]) != 16 or not 0 <= found[0] < 1 << 60:
            raise views.no_cursor()
    return found


@router.get("/approvals/{id}/{name:path}", responses=responses(401, 403, 404, 409, 422))
async def get_approval(caller: Reader, id: RunName, name: ApprovalName) -> ApprovalView:
    """One approval of a run, open or decided. It is gone once the run has ended; the history and the audit log are not."""
    found = await caller.server.approvals.find(caller.use, await resolve(caller, id), name)
    return view_of(found, caller.server.public_url)


@router.post("/approvals/{id}/{name:path}/approve", responses=responses(401, 403, 404, 409, 413, 422))
async def approve(request: Request, caller: Operator, id: RunName, name: ApprovalName, body: AnswerApproval) -> ApprovalView:  # fmt: skip
    """Say yes. The answer counts with those of others; the approval as it stands then is what comes back."""
    return await _answer(request, caller, id, name, body, approved=True)


@router.post("/approvals/{id}/{name:path}/reject", responses=responses(401, 403, 404, 409, 413, 422))
async def reject(request: Request, caller: Operator, id: RunName, name: ApprovalName, body: AnswerApproval) -> ApprovalView:  # fmt: skip
    """Say no."""
    return await _answer(request, caller, id, name, body, approved=False)


async def _answer(
    request: Request, caller: Caller, id: str, name: str, body: AnswerApproval, *, approved: bool
) -> ApprovalView:
    run_id = await resolve(caller, id)
    actor = await _actor(request, caller, body.as_)
    ballot = Ballot(approved, body.value, body.comment)
    after = await caller.server.approvals.vote(caller.use, run_id, name, actor, ballot)
    return view_of(after, caller.server.public_url)


@router.post("/approvals/{id}/{name:path}/delegate", responses=responses(401, 403, 404, 409, 413, 422))
async def delegate(request: Request, caller: Operator, id: RunName, name: ApprovalName, body: DelegateApproval) -> ApprovalView:  # fmt: skip
    """Hand over to somebody else what you are asked for."""
    run_id = await resolve(caller, id)
    actor = await _actor(request, caller, body.as_)
    after = await caller.server.approvals.delegate(caller.use, run_id, name, actor, body.to)
    return view_of(after, caller.server.public_url)


@router.post("/approvals/{id}/{name:path}/links", status_code=201, responses=responses(401, 403, 404, 409, 413, 422))
async def make_approval_link(request: Request, caller: Operator, id: RunName, name: ApprovalName, body: MakeLink) -> LinkView:  # fmt: skip
    """A page where one person can answer, once and without a credential. For somebody else than yourself only administrators make one."""
    found = await _make_link(request, caller, "approval", id, name, body.who, body.expires_in)
    return found.model_copy(update={"url": f"{found.url}?decision={body.decision}"}) if body.decision else found


@router.post("/runs/{id}/promises/{name:path}/links", status_code=201, responses=responses(401, 403, 404, 409, 413, 422))  # fmt: skip
async def make_promise_link(request: Request, caller: Operator, id: RunName, name: PromiseName, body: MakePromiseLink) -> LinkView:  # fmt: skip
    """A page where whoever has its address can give a promise its value, once and without a credential."""
    return await _make_link(request, caller, "promise", id, name, body.who or "", body.expires_in)


async def _make_link(
    request: Request, caller: Caller, kind: Kind, id: str, name: str, who: str, expires_in: float | str | None
) -> LinkView:
    run_id = await resolve(caller, id)
    actor = await _actor(request, caller, None)
    lasts_us = None if expires_in is None else to_us(expires_in)
    token, link = await caller.server.approvals.issue(
        caller.use, caller.namespace, kind, run_id, name, actor, who, lasts_us
    )
    return LinkView(url=link_url(caller.server.public_url, token), who=who, expires_at=views.moment(link.expires_us))


async def _actor(request: Request, caller: Caller, as_: str | None) -> Actor:
    via: Via = "cli" if request.headers.get("user-agent", "").startswith(CLI) else "rest"
    return await caller.server.approvals.actor(caller.principal, as_, via)


# -- the page of a link --------------------------------------------------------------------------------------------


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
    """What is asked. Nothing happens by looking at it."""
    server, link, use = await _opened(request, token)
    asked = await server.approvals.asked(use, link)
    if _wants_json(request):
        return _json(_asked(link, asked, server.public_url))
    return _page(link, asked, server, reject_first=decision == "reject")


@links.post("/links/{token}")
async def use_link(_: Anyone, request: Request, token: Token) -> Response:
    """Answer, once."""
    server, link, use = await _opened(request, token)
    sent = request.state.value
    asked = await server.approvals.asked(use, link)
    try:
        ballot = _from_form(sent.fields, link, asked) if isinstance(sent, SentForm) else _from_json(sent, link)
        after = await server.approvals.answer(use, link, ballot)
    except InvalidInput as e:
        if isinstance(sent, SentForm) and not _wants_json(request):  # nothing is lost: the link still works
            return _page(link, asked, server, error=str(e), given=sent.fields, status=422)
        raise
    if _wants_json(request):
        return _json(_asked(link, after, server.public_url))
    return render("linked.html", link=link, approved=ballot.approved, view=after and view_of(after, server.public_url))


async def _opened(request: Request, token: str) -> tuple[Server, Link, UseCases]:
    server: Server = request.app.state.server
    rates: Buckets = request.app.state.link_rates
    wait = rates.take(client_of(request.client.host) if request.client else "", LINKS_PER_S, LINKS_BURST)
    if wait:
        raise RateLimited(f"too many requests for links from this address: wait {wait:.1f} s", wait)
    link = await server.approvals.read(token)
    return server, link, await server.engine.use_of(link.namespace)


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def _asked(link: Link, asked: Standing | None, public_url: str) -> AskedByLink:
    return AskedByLink(
        kind=link.kind, name=link.name, who=link.who, expires_at=views.moment(link.expires_us),
        approval=view_of(asked, public_url) if asked else None,
    )  # fmt: skip


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
    view = view_of(asked, server.public_url) if asked is not None else None
    fields: Fields = fields_of(asked.spec.form) if asked is not None else []
    return render(
        "link.html", link=link, view=view, fields=fields, given=given or {}, sent=given is not None, error=error, reject_first=reject_first,
        expires_at=views.moment(link.expires_us), status_code=status,
    )  # fmt: skip


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
