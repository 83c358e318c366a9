"""Acts on approvals: read, answer, delegate, create links, answer by link.

Laws:

1. An answer is checked, written, counted and, when it decides, sent to the run in one transaction that holds the promise. So two people
   who answer at once are counted one after the other, and nothing is decided twice.
2. That a link was used is written in the transaction of its answer: either both or neither.
3. Every answer, delegation and link is in the audit log, from the same transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from perdure.core import approvals as ap
from perdure.core import ids
from perdure.core.access import Permission, Principal, Role
from perdure.core.api import approvals as acts
from perdure.core.api.act import RunRef
from perdure.core.api.approvals import (
    AnswerApproval,
    ApprovalPage,
    CreateLink,
    DelegateApproval,
    GetApproval,
    LinkCreated,
    ListApprovals,
)
from perdure.core.approvals import Standing, Vote
from perdure.core.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    LinkExpired,
    LinkUsed,
    NotFound,
    PayloadTooLarge,
    PromiseAlreadyResolved,
    RunFinished,
)
from perdure.core.limits import LINK_US_DEFAULT, LINK_US_MAX, PAYLOAD_BYTES_MAX, SUCCESSORS_MAX
from perdure.core.links import ID_BYTES, Link, read, sign
from perdure.core.messages import PromiseMessage
from perdure.core.questions import BY_NAME
from perdure.engine.api.api import Api, Caller, NamespaceApi, handles, page_limit
from perdure.engine.api.ports import AuditDetail, HeldApproval
from perdure.wire.codec import encode_message

R = TypeVar("R")
PER_RUN_MAX: Final = 500
"""Open approvals of one run that are read."""
ANONYMOUS: Final = "anonymous"
"""Who answers where no name is known."""
ME: Final = "@me"


class Actor(msgspec.Struct, frozen=True):
    """Who acts on an approval."""

    subject: str
    """Of the credential; for the audit log."""
    names: tuple[str, ...]
    """The names that the actor has, or acts on behalf of; the first one counts where anyone may answer."""
    via: ap.Via
    is_admin: bool = False
    """May create links for others."""


class Ballot(msgspec.Struct, frozen=True):
    approved: bool
    value: Any = None
    comment: str = ""


async def names_of(api: NamespaceApi) -> tuple[str, ...]:
    """The names by which an approval may ask the caller."""
    subject = api.by
    known = await api.ports.approvals.key_name(subject.removeprefix("key:")) if subject.startswith("key:") else None
    return ap.names_of(subject, known)


async def _actor(api: NamespaceApi, on_behalf_of: str) -> Actor:
    """Only administrators act on behalf of others."""
    via, is_admin = api.caller.via, api.caller.principal.may(Permission.ADMIN)
    if not on_behalf_of:
        return Actor(api.by, await names_of(api), via, is_admin)
    ap.check_name(on_behalf_of, "as")
    if not is_admin and on_behalf_of not in await names_of(api):
        raise Forbidden(
            f"{api.by} cannot answer on behalf of {on_behalf_of!r}: that needs the permission {Permission.ADMIN.value!r}"
        )
    return Actor(api.by, (on_behalf_of,), via, is_admin)


@handles(acts.LIST)
async def list_approvals(api: NamespaceApi, r: ListApprovals) -> ApprovalPage:
    """Open approvals, oldest first; or those that were decided or have expired, latest first."""
    if r.state == "decided":
        return await _list_decided(api, r)
    if r.decided_by:
        raise InvalidInput("decided_by is for approvals that were decided: give state decided as well")
    names = await _names(api, r.assignee)
    store, limit = api.ports.approvals, page_limit(r.limit)
    if not r.run:
        return await store.page(api.ns, names, r.workflow or None, r.after, limit)
    run_id = (await api.last_of(r.run)).run_id
    of_run = await store.of_run(api.ns, run_id, PER_RUN_MAX)
    mine = [s for s in of_run if names is None or not s.assignees or any(n in s.answerers for n in names)]
    return ApprovalPage(mine[:limit], None)


async def _list_decided(api: NamespaceApi, r: ListApprovals) -> ApprovalPage:
    if r.assignee or r.run:
        raise InvalidInput("approvals that were decided are found by workflow and decided_by, not by assignee or run")
    names = await _names(api, r.decided_by)
    return await api.ports.approvals.decided(api.ns, names, r.workflow or None, r.after, page_limit(r.limit))


async def _names(api: NamespaceApi, name: str) -> tuple[str, ...] | None:
    """None: of anyone."""
    if not name:
        return None
    return await names_of(api) if name == ME else (name,)


@handles(acts.GET)
async def get(api: NamespaceApi, r: GetApproval) -> Standing:
    """Open or decided. It is gone once the run has ended; the history and the audit log remain."""
    return await _find(api, (await api.last_of(r.run)).run_id, r.name)


async def _find(api: NamespaceApi, run_id: bytes, name: str) -> Standing:
    found = await api.ports.approvals.find(api.ns, run_id, name)
    if found is None:
        await _missing(api, run_id, name)
    return found


async def check_resolve(api: NamespaceApi, run_id: bytes, name: str) -> None:
    """An approval with assignees or a quorum is not resolved by hand past the people it asks, except by administrators."""
    if api.caller.principal.may(Permission.ADMIN):
        return
    found = await api.ports.approvals.find(api.ns, run_id, name)
    if found is not None and found.resolved_us is None and found.spec.is_guarded:
        raise Forbidden(
            f"{name!r} is an approval with assignees or a quorum: approve or reject it; to resolve it by hand needs the permission "
            f"{Permission.ADMIN.value!r}"
        )


@asynccontextmanager
async def _held(api: NamespaceApi, run_id: bytes, name: str) -> AsyncGenerator[HeldApproval]:
    try:
        async with api.ports.approvals.hold(api.ns, run_id, name) as held:
            yield held
    except _Gone as e:
        if not e.is_active:
            raise ids.ended_run(run_id) from None
        await _missing(api, run_id, name)


async def _on_last(api: NamespaceApi, run: RunRef, act: Callable[[bytes], Awaitable[R]]) -> R:
    """Act on the last run of a chain. If that continues as new at this moment, act on the next one; if it is retried, once more."""
    for _ in range(SUCCESSORS_MAX):
        run_id = (await api.last_of(run)).run_id
        try:
            return await act(run_id)
        except RunFinished:
            view = await api.view(run_id)
            if view.next_run is None and view.finished_us is not None:
                raise
    raise RunFinished(f"run {run} was continued too many times to follow")


async def _missing(api: NamespaceApi, run_id: bytes, name: str) -> NoReturn:
    view = await api.view(run_id)
    if view.finished_us is not None:
        raise ids.ended_run(run_id)
    open_ = [s.name for s in await api.ports.approvals.of_run(api.ns, run_id, 5)]
    advice = f"open: {', '.join(open_)}" if open_ else "it has not asked for any yet, or all are decided"
    raise NotFound(f"run {ids.text(run_id)} has no approval {name!r}; {advice}")


@handles(acts.ANSWER)
async def answer(api: NamespaceApi, r: AnswerApproval) -> Standing:
    """Approve or reject; the approval as it stands then."""
    actor = await _actor(api, r.on_behalf_of)
    try:
        ballot = Ballot(r.is_approved, msgspec.json.decode(r.value), r.comment)
    except msgspec.DecodeError as e:
        raise InvalidInput(f"the value is not JSON: {e}") from None

    async def vote(run_id: bytes) -> Standing:
        async with _held(api, run_id, r.name) as held:
            return await _vote(held, _asked(held, r.name, r.question), actor, ballot, None)

    after = await _on_last(api, r.run, vote)
    if after.resolved_us is not None:
        api.engine.events.message_sent.publish(after.run_id)
    return after


@handles(acts.DELEGATE)
async def delegate(api: NamespaceApi, r: DelegateApproval) -> Standing:
    """Ask another person instead of the actor."""
    actor = await _actor(api, r.on_behalf_of)

    async def reassign(run_id: bytes) -> Standing:
        async with _held(api, run_id, r.name) as held:
            asked = _asked(held, r.name, r.question)
            ap.check_open(asked)
            if not asked.assignees:
                raise Conflict(f"anyone may answer {r.name!r}: it has no assignee to take it over from")
            old = ap.answerer(asked, actor.names)
            ap.check_delegation(asked, old, r.to)
            assignees, later = ap.delegated(asked.assignees, old, r.to), ap.delegated(asked.escalate_to, old, r.to)
            await held.reassign(assignees, later)
            detail: AuditDetail = {"name": r.name, "from": old, "to": r.to, "via": actor.via}
            await held.audit(actor.subject, "approval.delegate", detail)
        return msgspec.structs.replace(asked, assignees=assignees, escalate_to=later)

    return await _on_last(api, r.run, reassign)


@handles(acts.CREATE_LINK)
async def create_link(api: NamespaceApi, r: CreateLink) -> LinkCreated:
    """A URL with which `who` can answer once. It grants no right: whether `who` may answer is checked when it is used."""
    lasts_us = r.lasts_us or LINK_US_DEFAULT
    if not 0 < lasts_us <= LINK_US_MAX:
        raise InvalidInput("a link lasts more than no time and at most 366 days (LINK_US_MAX)")
    if r.kind not in ("approval", "promise"):
        raise InvalidInput(f"a link is for an approval or a promise, not for {r.kind!r}")
    ap.check_name(r.name, "the promise")
    if r.kind == "approval" or r.who:
        ap.check_name(r.who, "who")
    actor = await _actor(api, "")

    async def create(run_id: bytes) -> Link:
        if r.kind == "promise":
            await api.engine.message_door.check(api.ns, run_id, "promise", r.name, None)
        async with _held(api, run_id, r.name) as held:
            if r.kind == "approval":
                _check_link(_standing(held), actor, r.who)
            elif held.standing is not None:
                raise Conflict(f"{r.name!r} is an approval; its links are made for the people it asks")
            elif not held.is_active:
                raise _Gone(is_active=False)
            expires_us = held.now_us + lasts_us
            question = held.standing.digest if held.standing is not None else BY_NAME
            id = secrets.token_bytes(ID_BYTES)
            detail: AuditDetail = {"name": r.name, "who": r.who, "link": id.hex(), "expires": ap.moment(expires_us)}
            await held.audit(actor.subject, "link.create", detail)
        return Link(r.kind, api.caller.namespace, run_id, r.name, r.who, expires_us, id, question)

    link = await _on_last(api, r.run, create)
    token = sign(link, await api.ports.approvals.secret())
    return LinkCreated(f"{api.api.public_url}/links/{token}", r.who, link.expires_us)


def _check_link(asked: Standing, actor: Actor, who: str) -> None:
    """A link answers in a person's name: only that person and administrators create one."""
    ap.check_open(asked)
    if not asked.assignees:
        return
    if who not in asked.assignees and who not in asked.escalate_to:
        ap.answerer(asked, (who,))
    if not actor.is_admin and who not in actor.names:
        raise Forbidden(
            f"{actor.subject} cannot create a link for {who!r}: it would answer in their name, which needs the permission "
            f"{Permission.ADMIN.value!r}"
        )


class Links:
    """Answers by link. The token is the credential, so there is no principal and no act."""

    def __init__(self, api: Api) -> None:
        self._api, self._store = api, api.ports.approvals

    async def read(self, token: str) -> Link:
        """The contents of a link token. NotFound when it was not signed here; LinkExpired or LinkUsed."""
        link = read(token, await self._store.secret())
        if link is None:
            raise NotFound("there is no such link: it was cut off on its way, or comes from another server")
        if link.expires_us <= await self._store.now_us():
            raise _expired()
        if await self._store.was_used(link.id):
            raise _used()
        return link

    async def asked(self, link: Link) -> Standing | None:
        """What a link asks. None for a plain promise. Raises what an answer would be refused with."""
        if link.kind == "promise":
            return None
        found = await _find(await self._of(link), link.run_id, link.name)
        _check_question(link, found)
        ap.check_open(found)
        ap.answerer(found, (link.who,))
        return found

    async def answer(self, link: Link, ballot: Ballot) -> Standing | None:
        """Once. The link was read by `read`; everything that may have changed since is checked again."""
        actor = Actor(f"link:{link.who or ANONYMOUS}", (link.who or ANONYMOUS,), "link")
        api = await self._of(link)

        async def use(run_id: bytes) -> Standing | None:
            if link.kind == "promise":
                value = msgspec.json.encode(ballot.value)
                await api.engine.message_door.check(api.ns, run_id, "promise", link.name, value)
            async with _held(api, run_id, link.name) as held:
                if held.now_us >= link.expires_us:
                    raise _expired()
                if not await held.use_link(link.id, link.expires_us):
                    raise _used()
                after: Standing | None = None
                if link.kind == "approval":
                    asked = _standing(held)
                    _check_question(link, asked)
                    after = await _vote(held, asked, actor, ballot, link)
                else:
                    await _resolve(held, actor, link, ballot)
            if after is None or after.resolved_us is not None:
                api.engine.events.message_sent.publish(run_id)
            return after

        if link.kind == "approval":  # it belongs to the run that asked, a plain promise to the chain
            return await use(link.run_id)
        return await _on_last(api, ids.text(link.run_id), use)

    async def _of(self, link: Link) -> NamespaceApi:
        principal = Principal(subject=f"link:{link.who or ANONYMOUS}", role=Role.WORKER, scopes=frozenset())
        return await self._api.of(Caller(principal, link.namespace, "link"))


async def _vote(held: HeldApproval, asked: Standing, actor: Actor, ballot: Ballot, link: Link | None) -> Standing:
    ap.check_open(asked)
    who = ap.answerer(asked, actor.names)
    value = ap.check_value(asked.spec.form, ballot.value) if ballot.approved else b"null"
    comment = ap.check_comment(ballot.comment)
    vote = Vote(who=who, approved=ballot.approved, value=value, comment=comment, via=actor.via, at_us=held.now_us)
    votes = ap.with_vote(asked.votes, vote)
    await held.cast(vote)
    verdict = ap.verdict_of(asked.spec, votes)
    if verdict is not None:
        envelope = ap.envelope(votes, verdict)
        await held.decide(encode_message(PromiseMessage(asked.name, envelope, True, asked.digest)))
    detail: AuditDetail = {"name": asked.name, "who": who, "via": actor.via, "decided": verdict is not None}
    if link is not None:
        detail["link"] = link.id.hex()
    await held.audit(actor.subject, "approval.approve" if ballot.approved else "approval.reject", detail)
    resolved_us = held.now_us if verdict is not None else None
    return msgspec.structs.replace(asked, votes=votes, resolved_us=resolved_us)


async def _resolve(held: HeldApproval, actor: Actor, link: Link, ballot: Ballot) -> None:
    if not held.is_active:
        raise _Gone(is_active=False)
    if held.standing is not None:
        raise Conflict(f"{link.name!r} is an approval; it cannot be answered with the link of a promise")
    value = msgspec.json.encode(ballot.value)
    if len(value) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(f"the value has {len(value)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}")
    if not await held.resolve(encode_message(PromiseMessage(link.name, value))):
        raise PromiseAlreadyResolved(f"promise {link.name!r} is resolved already; the first value stands")
    await held.audit(actor.subject, "link.resolve", {"name": link.name, "who": link.who, "link": link.id.hex()})


class _Gone(Exception):
    """There is no such approval, or its run has ended. What to say is found out after the transaction."""

    def __init__(self, *, is_active: bool) -> None:
        super().__init__()
        self.is_active = is_active


def _check_question(link: Link, asked: Standing) -> None:
    """A link is for the question it was made for. The run may have been retried since, and ask something else under the name."""
    if link.question != asked.digest:
        raise Conflict(f"the approval {asked.name!r} asks something else now. Ask for a new link.")


def _asked(held: HeldApproval, name: str, question: str) -> Standing:
    """The approval in its lock, if it still asks the question that an answer names."""
    found = held.standing
    # Without one, a run that was retried or continued as new has not asked again yet.
    if question and held.is_active and (found is None or found.question != question):
        raise Conflict(
            f"the question of the approval {name!r} has changed since you read it. Nothing was recorded. Read it again, then answer."
        )
    return _standing(held)


def _standing(held: HeldApproval) -> Standing:
    if held.standing is None:
        raise _Gone(is_active=held.is_active)
    return held.standing


def _expired() -> LinkExpired:
    return LinkExpired("this link has expired; ask for a new one")


def _used() -> LinkUsed:
    return LinkUsed("this link was used already; it works once")
