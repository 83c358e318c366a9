"""What people do about approvals, the same for every door: answer, delegate, hand out links, answer by link, look what is open.

Laws:

1. An answer is checked, written, counted and, when it decides, sent to the run in one transaction that holds the promise. So two people
   who answer at once are counted one after the other, and nothing is decided twice.
2. That a link was used is written in the transaction of its answer: either both or neither.
3. Every answer, delegation and link is in the audit log, from the same transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NoReturn, Protocol

import msgspec

from perdure.core import approvals as ap
from perdure.core import ids
from perdure.core.access import Permission, Principal
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
from perdure.core.limits import LINK_US_DEFAULT, LINK_US_MAX, PAYLOAD_BYTES_MAX
from perdure.core.links import ID_BYTES, Kind, Link, read, sign
from perdure.core.messages import PromiseKept
from perdure.engine.api.runs import UseCases
from perdure.wire.codec import encode_mail

Detail = dict[str, str | int | float | bool | None]
After = tuple[int, bytes, str]
"""(created, run, name) of the last approval of the page before."""

PER_RUN_MAX: Final = 500
"""Open approvals of one run that are looked at."""
NOBODY: Final = "anybody"
"""Who answers when nobody has to be anybody."""


class Actor(msgspec.Struct, frozen=True):
    """Somebody who does something about an approval."""

    subject: str
    """Of the credential; for the audit log."""
    names: tuple[str, ...]
    """What they are called, or in whose name they act; the first one counts where anybody may answer."""
    via: ap.Via
    is_admin: bool = False
    """May make links for others."""


class Ballot(msgspec.Struct, frozen=True):
    approved: bool
    value: Any = None
    comment: str = ""


class Page(msgspec.Struct, frozen=True):
    items: list[Standing]
    next: After | None


class Held(Protocol):
    """An approval that is ours until the end of the transaction. An exception undoes everything."""

    standing: Standing | None
    """None: there is no such promise, or it is no approval."""
    is_active: bool
    """Whether the run is."""
    now_us: int

    async def cast(self, vote: Vote) -> None: ...
    async def decide(self, mail: bytes) -> None: ...
    async def resolve(self, mail: bytes) -> bool:
        """A plain promise; False when it has its value already."""
        ...

    async def reassign(self, assignees: list[str], escalate_to: list[str]) -> None: ...
    async def use_link(self, id: bytes, expires_us: int) -> bool:
        """False when it was used before."""
        ...

    async def audit(self, actor: str, action: str, detail: Detail) -> None: ...


class ApprovalStore(Protocol):
    def hold(self, ns: int, run_id: bytes, name: str) -> AbstractAsyncContextManager[Held]: ...
    async def find(self, ns: int, run_id: bytes, name: str) -> Standing | None: ...
    async def of_run(self, ns: int, run_id: bytes, limit: int) -> list[Standing]: ...
    async def page(
        self, ns: int, names: Sequence[str] | None, workflow: str | None, after: After | None, limit: int
    ) -> Page: ...
    async def secret(self) -> bytes:
        """What links are signed with; made at first use."""
        ...

    async def now_us(self) -> int: ...
    async def was_used(self, link: bytes) -> bool: ...
    async def key_name(self, ident: str) -> str | None: ...


class Approvals:
    def __init__(self, store: ApprovalStore) -> None:
        self._store = store

    # -- who ---------------------------------------------------------------------------------------------------------

    async def names(self, principal: Principal) -> tuple[str, ...]:
        """What somebody is called where assignees are named."""
        subject = principal.subject
        known = await self._store.key_name(subject.removeprefix("key:")) if subject.startswith("key:") else None
        return ap.names_of(subject, known)

    async def actor(self, principal: Principal, as_: str | None, via: ap.Via) -> Actor:
        """Who acts, in whose name. In the name of somebody else only who administers may."""
        is_admin = principal.may(Permission.ADMIN)
        if not as_:
            return Actor(principal.subject, await self.names(principal), via, is_admin)
        ap.check_name(as_, "as")
        own = await self.names(principal)
        if not is_admin and as_ not in own:
            raise Forbidden(
                f"{principal.subject} cannot answer in the name of {as_!r}: that needs the permission {Permission.ADMIN.value!r}"
            )
        return Actor(principal.subject, (as_,), via, is_admin)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def page(
        self, use: UseCases, names: Sequence[str] | None, workflow: str | None, after: After | None, limit: int
    ) -> Page:
        """Open ones, oldest first: all, or those that somebody of these names may answer now."""
        return await self._store.page(use.ns, names, workflow, after, limit)

    async def of_run(self, use: UseCases, run_id: bytes) -> list[Standing]:
        """Open ones of one run."""
        return await self._store.of_run(use.ns, run_id, PER_RUN_MAX)

    async def find(self, use: UseCases, run_id: bytes, name: str) -> Standing:
        found = await self._store.find(use.ns, run_id, name)
        if found is None:
            await self._missing(use, run_id, name)
        return found

    async def check_resolve(self, use: UseCases, run_id: bytes, name: str, principal: Principal) -> None:
        """An approval that is not for everybody to answer is not for everybody to resolve by hand, past those it asks."""
        if principal.may(Permission.ADMIN):
            return
        found = await self._store.find(use.ns, run_id, name)
        if found is not None and found.resolved_us is None and found.spec.is_guarded:
            raise Forbidden(
                f"{name!r} is an approval with assignees or a quorum: approve or reject it; to resolve it by hand needs the permission "
                f"{Permission.ADMIN.value!r}"
            )

    @asynccontextmanager
    async def _hold(self, use: UseCases, run_id: bytes, name: str) -> AsyncGenerator[Held]:
        try:
            async with self._store.hold(use.ns, run_id, name) as held:
                yield held
        except _Gone:
            await self._missing(use, run_id, name)

    async def _missing(self, use: UseCases, run_id: bytes, name: str) -> NoReturn:
        view = await use.describe(run_id)  # NotFound for a run that is not there
        if view.finished_us is not None:
            raise RunFinished(f"run {ids.text(run_id)} has ended and asks for nothing any more")
        open_ = [s.name for s in await self._store.of_run(use.ns, run_id, 5)]
        advice = f"open are: {', '.join(open_)}" if open_ else "it has not asked for any yet, or all are decided"
        raise NotFound(f"run {ids.text(run_id)} has no approval {name!r}; {advice}")

    # -- acting ------------------------------------------------------------------------------------------------------

    async def vote(self, use: UseCases, run_id: bytes, name: str, actor: Actor, ballot: Ballot) -> Standing:
        """Say yes or no; the approval as it stands then."""
        async with self._hold(use, run_id, name) as held:
            asked = _standing(held)
            after = await _vote(held, asked, actor, ballot, None)
        if after.resolved_us is not None:
            use.posted(run_id)
        return after

    async def delegate(self, use: UseCases, run_id: bytes, name: str, actor: Actor, to: str) -> Standing:
        """Hand over to somebody else what one is asked for oneself."""
        async with self._hold(use, run_id, name) as held:
            asked = _standing(held)
            ap.check_open(asked)
            if not asked.assignees:
                raise Conflict(f"anybody may answer {name!r}: there is nobody to take it over from")
            old = ap.answerer(asked, actor.names)
            ap.check_delegation(asked, old, to)
            assignees, later = ap.delegated(asked.assignees, old, to), ap.delegated(asked.escalate_to, old, to)
            await held.reassign(assignees, later)
            detail: Detail = {"name": name, "from": old, "to": to, "via": actor.via}
            await held.audit(actor.subject, "approval.delegate", detail)
        return msgspec.structs.replace(asked, assignees=assignees, escalate_to=later)

    # -- links -------------------------------------------------------------------------------------------------------

    async def issue(
        self,
        use: UseCases,
        namespace: str,
        kind: Kind,
        run_id: bytes,
        name: str,
        actor: Actor,
        who: str,
        lasts_us: int | None = None,
    ) -> tuple[str, Link]:
        """A token with which `who` can answer once. It gives nobody a right they would not have: who may answer is seen when it is used."""
        lasts = LINK_US_DEFAULT if lasts_us is None else lasts_us
        if not 0 < lasts <= LINK_US_MAX:
            raise InvalidInput("a link works for more than no time and at most 366 days (LINK_US_MAX)")
        ap.check_name(name, "the promise")
        if kind == "approval" or who:
            ap.check_name(who, "who")
        async with self._hold(use, run_id, name) as held:
            if kind == "approval":
                _check_issue(_standing(held), actor, who)
            elif held.standing is not None:
                raise Conflict(f"{name!r} is an approval; its links are made for the people it asks")
            elif not held.is_active:
                raise _Gone
            link = Link(kind, namespace, run_id, name, who, held.now_us + lasts, secrets.token_bytes(ID_BYTES))
            detail: Detail = {"name": name, "who": who, "link": link.id.hex(), "expires": ap.moment(link.expires_us)}
            await held.audit(actor.subject, "link.issue", detail)
        return sign(link, await self._store.secret()), link

    async def read(self, token: str) -> Link:
        """What a token is good for. NotFound when we did not sign it, LinkExpired and LinkUsed when it is over."""
        link = read(token, await self._store.secret())
        if link is None:
            raise NotFound("there is no such link: it was cut off on its way, or comes from another server")
        if link.expires_us <= await self._store.now_us():
            raise LinkExpired("this link has expired; ask for a new one")
        if await self._store.was_used(link.id):
            raise _used()
        return link

    async def asked(self, use: UseCases, link: Link) -> Standing | None:
        """What a link asks. None for a plain promise. Raises what an answer would be refused with."""
        if link.kind == "promise":
            return None
        found = await self.find(use, link.run_id, link.name)
        ap.check_open(found)
        ap.answerer(found, (link.who,))
        return found

    async def answer(self, use: UseCases, link: Link, ballot: Ballot) -> Standing | None:
        """By link, once. The link was read by `read`; everything that may have changed since is looked at again."""
        actor = Actor(f"link:{link.who or NOBODY}", (link.who or NOBODY,), "link")
        async with self._hold(use, link.run_id, link.name) as held:
            if held.now_us >= link.expires_us:
                raise LinkExpired("this link has expired; ask for a new one")
            if not await held.use_link(link.id, link.expires_us):
                raise _used()
            after: Standing | None = None
            if link.kind == "approval":
                after = await _vote(held, _standing(held), actor, ballot, link)
            else:
                await _resolve(held, actor, link, ballot)
        if after is None or after.resolved_us is not None:
            use.posted(link.run_id)
        return after


async def _vote(held: Held, asked: Standing, actor: Actor, ballot: Ballot, link: Link | None) -> Standing:
    ap.check_open(asked)
    who = ap.answerer(asked, actor.names)
    value = ap.check_value(asked.spec.form, ballot.value) if ballot.approved else b"null"
    comment = ap.check_comment(ballot.comment)
    vote = Vote(who=who, approved=ballot.approved, value=value, comment=comment, via=actor.via, at_us=held.now_us)
    votes = ap.with_vote(asked.votes, vote)
    await held.cast(vote)
    verdict = ap.verdict_of(asked.spec, votes)
    if verdict is not None:
        await held.decide(encode_mail(PromiseKept(asked.name, ap.envelope(votes, verdict), True)))
    detail: Detail = {"name": asked.name, "who": who, "via": actor.via, "decided": verdict is not None}
    if link is not None:
        detail["link"] = link.id.hex()
    await held.audit(actor.subject, "approval.approve" if ballot.approved else "approval.reject", detail)
    resolved_us = held.now_us if verdict is not None else None
    return msgspec.structs.replace(asked, votes=votes, resolved_us=resolved_us)


async def _resolve(held: Held, actor: Actor, link: Link, ballot: Ballot) -> None:
    if not held.is_active:
        raise _Gone
    if held.standing is not None:
        raise Conflict(f"{link.name!r} is an approval; it cannot be answered with the link of a promise")
    value = msgspec.json.encode(ballot.value)
    if len(value) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(f"the value has {len(value)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}")
    if not await held.resolve(encode_mail(PromiseKept(link.name, value))):
        raise PromiseAlreadyResolved(f"promise {link.name!r} is resolved already; the first value stands")
    await held.audit(actor.subject, "link.resolve", {"name": link.name, "who": link.who, "link": link.id.hex()})


class _Gone(Exception):
    """There is no such approval, or its run has ended; why is found out after the transaction."""


def _standing(held: Held) -> Standing:
    if held.standing is None:
        raise _Gone
    return held.standing


def _check_issue(asked: Standing, actor: Actor, who: str) -> None:
    """A link is somebody's voice: nobody makes one for somebody else but who administers."""
    ap.check_open(asked)
    if not asked.assignees:
        return
    if who not in asked.assignees and who not in asked.escalate_to:
        ap.answerer(asked, (who,))
    if not actor.is_admin and who not in actor.names:
        raise Forbidden(
            f"{actor.subject} cannot make a link for {who!r}: it would answer in their name, which needs the permission "
            f"{Permission.ADMIN.value!r}"
        )


def _used() -> LinkUsed:
    return LinkUsed("this link was used already; it works once. Ask for a new one if there is something to add")


def link_url(base: str, token: str) -> str:
    return f"{base.rstrip('/')}/links/{token}"
