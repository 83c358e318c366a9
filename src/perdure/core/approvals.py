"""Approvals: the question, who may answer, and the result of the answers. Pure: the store locks and writes, this decides.

Laws:

1. An approval is a promise whose value is the decision. It is decided once, by the answer that completes a quorum.
2. One name, one vote. It may be changed until the approval is decided.
3. Who may answer is a matter of names and of the time: the assignees, and from `escalate_us` on those it escalates to as well.
   Without assignees: anyone who may operate runs.
4. From `deadline_us` on no answer is accepted. A timer of the run reports the deadline to its code.

    open --votes--> approved (quorum of yes) | rejected (reject_quorum of no)
      '--deadline--> expired
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from perdure.core.durations import datetime_of
from perdure.core.errors import ApprovalClosed, ApprovalExpired, Conflict, InvalidInput, NotAssigned, PayloadTooLarge
from perdure.core.json_schema import completed, problem
from perdure.core.limits import (
    APPROVAL_BYTES_MAX,
    APPROVAL_NAMES_MAX,
    APPROVAL_TITLE_CHARS_MAX,
    APPROVAL_VALUE_BYTES_MAX,
    COMMENT_CHARS_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
)
from perdure.core.names import UNSAFE, invalid_name

Via = Literal["rest", "cli", "link", "sdk"]
Status = Literal["open", "approved", "rejected", "resolved", "expired"]

_USER: Final = "user:"
_KEY: Final = "key:"
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked, as it is recorded in the run's history. Moments come from the run's own clock."""

    title: str
    quorum: int
    reject_quorum: int
    description: str = ""
    form: dict[str, Any] | None = None
    """JSON Schema of the value that an approval brings along."""
    assignees: list[str] = []
    deadline_us: int | None = None
    escalate_us: int | None = None
    escalate_to: list[str] = []
    details: Any = None
    """Shown with the question."""

    @property
    def is_guarded(self) -> bool:
        """Whether only assignees may answer, or more than one answer is needed."""
        return bool(self.assignees) or self.quorum > 1


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    who: str
    approved: bool
    value: bytes = b"null"
    comment: str = ""
    via: str = "rest"
    at_us: int = 0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """An approval as it stands at a moment."""

    run_id: bytes
    name: str
    workflow: str
    key: str | None
    spec: Spec
    assignees: list[str]
    """After delegations; the spec has those who were asked at first."""
    escalate_to: list[str]
    created_us: int
    resolved_us: int | None
    now_us: int
    votes: list[Vote]
    """In the order in which they were given."""
    question: str = ""
    """Hex text. Give it back with an answer, so that the answer counts for this question or is refused."""
    digest: bytes = b""
    """Of what is asked (core/questions.py): votes belong to it."""

    @property
    def is_escalated(self) -> bool:
        return self.spec.escalate_us is not None and self.spec.escalate_us <= self.now_us

    @property
    def is_expired(self) -> bool:
        return self.spec.deadline_us is not None and self.spec.deadline_us <= self.now_us

    @property
    def decided_us(self) -> int | None:
        """When it was decided, or its deadline passed."""
        return self.spec.deadline_us if self.status == "expired" else self.resolved_us

    @property
    def answerers(self) -> list[str]:
        """Who may answer now; empty where it has no assignees."""
        return list(dict.fromkeys([*self.assignees, *(self.escalate_to if self.is_escalated else ())]))

    @property
    def status(self) -> Status:
        verdict = verdict_of(self.spec, self.votes)
        if verdict is not None:
            return "approved" if verdict else "rejected"
        if self.resolved_us is not None:
            return "resolved"
        return "expired" if self.is_expired else "open"


def encode_spec(spec: Spec) -> bytes:
    """As JSON, once it is sure that it can be kept and can ever be decided."""
    _check_spec(spec)
    try:
        data = msgspec.json.encode(spec)
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidInput(f"what the approval {spec.title!r} shows to people is not JSON: {e}") from None
    if len(data) > APPROVAL_BYTES_MAX:
        raise PayloadTooLarge(
            f"what the approval {spec.title!r} asks has {len(data)} bytes, over the limit APPROVAL_BYTES_MAX={APPROVAL_BYTES_MAX}; "
            "show people a link to the details instead"
        )
    if b"\\u0000" in data and _NUL.search(data):
        raise InvalidInput(f"what the approval {spec.title!r} asks contains the character NUL, which cannot be stored")
    return data


def decode_spec(data: bytes | str) -> Spec:
    return msgspec.json.decode(data, type=Spec)


def _check_spec(spec: Spec) -> None:
    if len(spec.title) > APPROVAL_TITLE_CHARS_MAX:
        raise InvalidInput(
            f"the title of an approval has {len(spec.title)} characters, over the limit "
            f"APPROVAL_TITLE_CHARS_MAX={APPROVAL_TITLE_CHARS_MAX}; put more into its description"
        )
    for what, names in (("assignees", spec.assignees), ("escalate_to", spec.escalate_to)):
        check_names(names, what)
    for what, count in (("quorum", spec.quorum), ("reject_quorum", spec.reject_quorum)):
        if not 1 <= count <= APPROVAL_NAMES_MAX:
            raise InvalidInput(f"{what} is {count}; it must lie between 1 and APPROVAL_NAMES_MAX={APPROVAL_NAMES_MAX}")
        reach = len({*spec.assignees, *spec.escalate_to})
        if spec.assignees and count > reach:
            raise InvalidInput(f"{what} is {count}, and only {reach} may answer: it could never be reached")
    if spec.escalate_to and spec.escalate_us is None:
        raise InvalidInput("the approval names whom it escalates to but not when: say after how long")
    if spec.escalate_us is not None and not spec.escalate_to:
        raise InvalidInput("the approval escalates but does not say to whom")
    if spec.escalate_to and not spec.assignees:
        raise InvalidInput("the approval has no assignees: anyone may answer from the start, so it cannot escalate")


def check_names(names: Sequence[str], what: str) -> None:
    if len(names) > APPROVAL_NAMES_MAX:
        raise InvalidInput(f"{what} has {len(names)} names, over the limit APPROVAL_NAMES_MAX={APPROVAL_NAMES_MAX}")
    for name in names:
        check_name(name, what)


def check_name(name: Any, what: str) -> str:
    kind = "promise" if what == "the promise" else "person"
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_CHARS_MAX or UNSAFE.search(name):
        raise InvalidInput(f"{what}: {invalid_name(kind, str(cast(object, name)))}")
    return name


def names_of(subject: str, key_name: str | None = None) -> tuple[str, ...]:
    """The names of a caller: the plain name first, then the whole subject of the credential.

    A name that looks like a subject is left out: it could be the subject of another caller."""
    alias = key_name if subject.startswith(_KEY) else subject.removeprefix(_USER) if subject.startswith(_USER) else None
    if not alias or alias.startswith((_USER, _KEY)):
        return (subject,)
    return alias, subject


def answerer(standing: Standing, names: Iterable[str]) -> str:
    """The name under which a caller answers. Raises NotAssigned."""
    given = tuple(names)
    asked = standing.answerers
    if not standing.assignees:
        return given[0]
    found = next((n for n in given if n in asked), None)
    if found is not None:
        return found
    later = [n for n in given if n in standing.escalate_to]
    why = "is asked only once it has escalated" if later else "is not among them"
    raise NotAssigned(
        f"the approval {standing.name!r} is for {_listed(asked)}, and {given[0]!r} {why}; "
        "one of them can delegate it, and an administrator can answer in the name of one"
    )


def check_open(standing: Standing) -> None:
    """Raises ApprovalClosed or ApprovalExpired."""
    if standing.resolved_us is not None:
        verdict = verdict_of(standing.spec, standing.votes)
        by = _listed(_deciders(standing.votes, verdict)) if verdict is not None else "hand"
        word = "resolved" if verdict is None else "approved" if verdict else "rejected"
        raise ApprovalClosed(f"the approval {standing.name!r} was {word} by {by}; an answer no longer counts")
    if standing.is_expired:
        raise ApprovalExpired(f"the deadline of the approval {standing.name!r} has passed; an answer no longer counts")


def check_delegation(standing: Standing, old: str, new: str) -> None:
    check_name(new, "to")
    if new in standing.answerers or new in standing.escalate_to:
        raise Conflict(f"{new!r} is asked for {standing.name!r} already")
    if any(v.who == old for v in standing.votes):
        raise Conflict(f"{old!r} has answered {standing.name!r} already; an answer can be changed, not handed over")


def delegated(names: list[str], old: str, new: str) -> list[str]:
    return [new if n == old else n for n in names]


def check_value(form: Mapping[str, Any] | None, value: Any) -> bytes:
    """The value of a yes as JSON, defaults of the form filled in. Raises InvalidInput when it does not fit."""
    if form is not None:
        if form.get("type") == "object" or "properties" in form:
            value, _ = completed(form, value)
        said = problem(form, value, "value")
        if said:
            raise InvalidInput(f"the answer does not fit the form: {said}")
    data = msgspec.json.encode(value)
    if len(data) > APPROVAL_VALUE_BYTES_MAX:
        raise PayloadTooLarge(
            f"the value of an answer has {len(data)} bytes, over the limit APPROVAL_VALUE_BYTES_MAX={APPROVAL_VALUE_BYTES_MAX}"
        )
    return data


def check_comment(comment: str) -> str:
    if len(comment) > COMMENT_CHARS_MAX:
        raise InvalidInput(
            f"the comment has {len(comment)} characters, over the limit COMMENT_CHARS_MAX={COMMENT_CHARS_MAX}"
        )
    return comment.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def with_vote(votes: list[Vote], vote: Vote) -> list[Vote]:
    """The votes once this one is given: it takes the place of an earlier one of the same name."""
    out = [v for v in votes if v.who != vote.who]
    if len(out) >= APPROVAL_NAMES_MAX:
        raise Conflict(
            f"as many as APPROVAL_NAMES_MAX={APPROVAL_NAMES_MAX} have answered this approval; it takes no more"
        )
    return [*out, vote]


def verdict_of(spec: Spec, votes: list[Vote]) -> bool | None:
    """None: not decided yet."""
    if sum(v.approved for v in votes) >= spec.quorum:
        return True
    return False if sum(not v.approved for v in votes) >= spec.reject_quorum else None


def envelope(votes: list[Vote], approved: bool) -> bytes:
    """The value that the run receives: the verdict, its author, and all votes. The last vote is the deciding one."""
    deciding = votes[-1]
    given = [v.value for v in votes if v.approved and v.value != b"null"] if approved else []
    value = deciding.value if approved and deciding.value != b"null" else given[-1] if given else b"null"
    for comments in (True, False):  # comments may go, the rest always fits
        data = msgspec.json.encode(
            {
                "approved": approved,
                "by": _deciders(votes, approved),
                "value": msgspec.Raw(value),
                "comment": deciding.comment,
                "votes": [
                    {"who": v.who, "approved": v.approved, "at": moment(v.at_us)}
                    | ({"comment": v.comment} if comments else {})
                    for v in votes
                ],
            }
        )
        if len(data) <= PAYLOAD_BYTES_MAX:
            break
    return data


def moment(us: int) -> str:
    """RFC 3339 in UTC, always with microseconds."""
    return datetime_of(us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _deciders(votes: list[Vote], verdict: bool | None) -> list[str]:
    return [v.who for v in votes if v.approved is verdict]


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """What a run makes of the value of an approval's promise."""

    approved: bool
    by: tuple[str, ...] = ()
    comment: str = ""
    value: Any = None

    def as_output(self) -> dict[str, Any]:
        return {"approved": self.approved, "by": list(self.by), "comment": self.comment, "value": self.value}


def read_answer(value: Any) -> ApprovalAnswer | None:
    """The decision by votes; None for any other value that the promise was resolved with."""
    if not isinstance(value, dict):
        return None
    given = cast(dict[str, Any], value)
    if not isinstance(given.get("approved"), bool) or not isinstance(given.get("votes"), list):
        return None
    by = cast(list[Any], given.get("by") if isinstance(given.get("by"), list) else [])
    return ApprovalAnswer(given["approved"], tuple(map(str, by)), str(given.get("comment") or ""), given.get("value"))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown or "nobody"
