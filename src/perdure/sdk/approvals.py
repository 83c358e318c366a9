"""`Approval`: a decision by people. A workflow waits for it; code outside answers, delegates and makes links.

Every `wait()` is another question: the second one of a run is called `name#2`, outside `nth=2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from perdure.core.api import approvals
from perdure.core.api.approvals import AnswerApproval, CreateLink, DelegateApproval
from perdure.core.approvals import ApprovalAnswer, Spec, check_names, encode_spec, read_answer
from perdure.core.durations import Duration, to_us
from perdure.core.errors import ApprovalRejected, Failure, InvalidInput, PerdureError
from perdure.core.json_schema import schema_problem
from perdure.core.names import checked_name
from perdure.sdk.client.backend import Backend, backend
from perdure.sdk.client.keys import ApprovalDecision, within
from perdure.sdk.message_registry import messages as registry
from perdure.sdk.options import checked
from perdure.sdk.payloads import Converter
from perdure.sdk.payloads.schemas import schemas_of
from perdure.sdk.workflow.live_run import current
from perdure.sdk.workflow.step import Step

T = TypeVar("T")

FORM_WORDS_DROPPED_MAX: Final = 100
"""Formats and patterns of one form that are dropped, because only its type can check them."""
FORM_DEPTH_MAX: Final = 8
"""Levels of a form that are described; deeper ones accept any value."""
_REF: Final = "#/$defs/"


class ApprovalOptions(TypedDict, total=False):
    """Options of an approval."""

    title: str
    """The question; the name of the approval unless given."""
    description: str
    assignees: Sequence[str]
    """Names of people or API keys that may answer; everyone who may operate runs unless given."""
    quorum: int
    """How many have to approve; 1 unless given."""
    reject_quorum: int
    """How many have to reject; 1 unless given."""
    timeout: Duration | None
    """How long the workflow waits; forever unless given."""
    escalate_after: Duration | None
    """After this time `escalate_to` may answer too."""
    escalate_to: Sequence[str]


class Approval(Generic[T]):
    """People approve or reject, and with a type fill in a form.

        release = Approval("release", Terms, assignees=["ada", "ben"], quorum=2, timeout="2d")
        terms = await release.wait()          # in a workflow
        await release.approve(run_id, terms)  # outside

    Args:
        name: the name of the approval in its run.
        type: the type of the form; without one `wait()` returns None.
        options: see ApprovalOptions.

    Raises InvalidInput for options that can never work.
    """

    @overload
    def __init__(self: Approval[None], name: str, type: None = None, **options: Unpack[ApprovalOptions]) -> None: ...
    @overload
    def __init__(self, name: str, type: type[T], **options: Unpack[ApprovalOptions]) -> None: ...
    def __init__(self, name: str, type: Any = None, **options: Unpack[ApprovalOptions]) -> None:
        given = checked("Approval()", ApprovalOptions, options)
        timeout, escalate_after = given.get("timeout"), given.get("escalate_after")
        self.name = checked_name("approval", name)
        registry.add("approval", self.name)
        self._converter: Converter[Any] | None = Converter.of(type) if type is not None else None
        self._timeout_us = to_us(timeout) if timeout is not None else 0
        self._escalate_us = to_us(escalate_after) if escalate_after is not None else 0
        self._asked = Spec(
            title=given.get("title") or name,
            quorum=given.get("quorum", 1),
            reject_quorum=given.get("reject_quorum", 1),
            description=given.get("description", ""),
            form=form_of(type) if type is not None else None,
            assignees=_people(given.get("assignees", ()), "assignees"),
            escalate_us=self._escalate_us or None,
            escalate_to=_people(given.get("escalate_to", ()), "escalate_to"),
        )
        encode_spec(self._asked)  # so that invalid options are reported here, not where a run waits

    def wait(
        self,
        timeout: Duration | None = None,
        *,
        title: str | None = None,
        details: Any = None,
        assignees: Sequence[str] | None = None,
    ) -> Step[T]:
        """Ask, and wait for the decision. Works inside a workflow only.

        Args:
            timeout: replaces that of the approval.
            title: replaces that of the approval.
            details: any JSON-able value that is shown with the question.
            assignees: replace those of the approval.

        Returns a step for the value of the form. The await raises ApprovalRejected, or TimeoutError without a decision in time.
        """
        runtime = current.get(None)
        if runtime is None:
            raise PerdureError(f"Approval({self.name!r}).wait() works inside a workflow only")
        limit_us = to_us(timeout) if timeout is not None else self._timeout_us
        now_us = runtime.now_us
        spec = msgspec.structs.replace(
            self._asked,
            title=title or self._asked.title,
            details=details,
            assignees=self._asked.assignees if assignees is None else _people(assignees, "assignees"),
            deadline_us=now_us + limit_us if limit_us else None,
            escalate_us=now_us + self._escalate_us if self._escalate_us else None,
        )
        return runtime.promises.wait_approval(self.name, spec, self._decode, limit_us)

    def _decode(self, data: bytes) -> Any:
        answer = answer_of(data)
        if not answer.approved:
            who = f" by {', '.join(answer.by)}" if answer.by else ""
            said = f"{self.name} was rejected{who}{f': {answer.comment}' if answer.comment else ''}"
            raise ApprovalRejected(
                Failure(ApprovalRejected.code, said, ApprovalRejected.__name__), answer.by, answer.comment
            )
        if self._converter is None:
            return None
        return self._converter.decode(msgspec.json.encode(answer.value))

    async def approve(
        self,
        run_id: str,
        value: T | None = None,
        *,
        by: str = "",
        comment: str = "",
        nth: int = 1,
        question: str = "",
        timeout: Duration | None = None,
    ) -> bool:
        """Approve it. Returns True when this decides the approval, False when more have to answer.

        Args:
            run_id: the id of the run.
            value: the value of the form.
            by: in whose name; the caller's unless given. A server allows it to administrators only.
            comment: shown with the decision.
            nth: which question of the run, counted from 1.
            question: `OpenApproval.question` as you read it; any unless given.
            timeout: how long the call may take; that of the client unless given.

        Raises Conflict if the run asks something else by now, ApprovalClosed, ApprovalExpired, NotAssigned, NotFound, or InvalidInput for a value that does not fit the form.
        """
        decision = ApprovalDecision(by=by, comment=comment, nth=nth, question=question)
        return await self.approve_on(backend(), run_id, value, decision, within_s=within(timeout))

    async def approve_on(
        self,
        target: Backend,
        run_id: str,
        value: T | None,
        decision: ApprovalDecision,
        *,
        within_s: float | None = None,
    ) -> bool:
        """`approve` through a client."""
        data = b"null" if value is None or self._converter is None else self._converter.encode(value)
        return await self._answer(target, run_id, data, decision, within_s)

    async def reject(
        self,
        run_id: str,
        *,
        by: str = "",
        comment: str = "",
        nth: int = 1,
        question: str = "",
        timeout: Duration | None = None,
    ) -> bool:
        """Reject it. Returns and raises like `approve()`."""
        decision = ApprovalDecision(by=by, comment=comment, nth=nth, question=question)
        return await self.reject_on(backend(), run_id, decision, within_s=within(timeout))

    async def reject_on(
        self, target: Backend, run_id: str, decision: ApprovalDecision, *, within_s: float | None = None
    ) -> bool:
        """`reject` through a client."""
        return await self._answer(target, run_id, None, decision, within_s)

    async def _answer(
        self, target: Backend, run_id: str, approved: bytes | None, how: ApprovalDecision, within_s: float | None
    ) -> bool:
        """`approved`: with this value; None: rejected."""
        name, value = self._nth(how.nth), b"null" if approved is None else approved
        answer = AnswerApproval(run_id, name, approved is not None, value, how.comment, how.by, how.question)
        return (await target.call(approvals.ANSWER, answer, within_s)).resolved_us is not None

    async def resolve(self, run_id: str, value: T, *, timeout: Duration | None = None) -> None:
        """Approve it with a value, like `Promise.resolve()`."""
        await self.approve(run_id, value, timeout=timeout)

    async def resolve_on(self, target: Backend, run_id: str, value: T, *, within_s: float | None = None) -> None:
        """`resolve` through a client."""
        await self.approve_on(target, run_id, value, ApprovalDecision(), within_s=within_s)

    async def delegate(
        self,
        run_id: str,
        to: str,
        *,
        by: str = "",
        nth: int = 1,
        question: str = "",
        timeout: Duration | None = None,
    ) -> None:
        """Delegate it: `to` is assigned instead of `by`, or of the caller."""
        delegated = DelegateApproval(run_id, self._nth(nth), to, by, question)
        await backend().call(approvals.DELEGATE, delegated, within(timeout))

    async def link(
        self,
        run_id: str,
        who: str,
        *,
        expires_in: Duration | None = None,
        nth: int = 1,
        timeout: Duration | None = None,
    ) -> str:
        """The address of a page where `who` can answer once, without a credential. Keep it secret: the link is the permission.

        Args:
            run_id: the id of the run.
            who: whose answer it is.
            expires_in: how long the link works.
            nth: which question of the run, counted from 1.
            timeout: how long the call may take; that of the client unless given.
        """
        lasts_us = to_us(expires_in) if expires_in is not None else 0
        link = CreateLink(run_id, "approval", self._nth(nth), who, lasts_us)
        return (await backend().call(approvals.CREATE_LINK, link, within(timeout))).url

    def _nth(self, nth: int) -> str:
        if nth < 1:
            raise InvalidInput(f"nth={nth}: the first question of a run is nth=1")
        return self.name if nth == 1 else f"{self.name}#{nth}"


def answer_of(data: bytes) -> ApprovalAnswer:
    """The decision that was recorded. A promise that was resolved by hand may also hold true, false, a decision without votes, or the value."""
    value: Any = msgspec.json.decode(data or b"null")
    found = read_answer(value)
    if found is not None:
        return found
    if isinstance(value, bool):
        return ApprovalAnswer(value)
    if isinstance(value, dict):
        given = cast(dict[str, Any], value)
        if given.get("approved") is False:
            return ApprovalAnswer(False, comment=str(given.get("comment") or ""))
        return ApprovalAnswer(True, value=given.get("value", given))
    return ApprovalAnswer(True, value=value)


def _people(names: Sequence[str], what: str) -> list[str]:
    if isinstance(names, str):
        raise InvalidInput(f"{what} is a list of names; write [{names!r}]")
    check_names(names, what)
    return list(dict.fromkeys(names))


def form_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type without references, as a form needs it."""
    schemas, definitions = schemas_of({"value": kind})
    form = _written_out(schemas["value"], definitions, 0)
    # Libraries describe their types with formats and patterns of their own (a Decimal of pydantic has a lookahead). The type checks these.
    for _ in range(FORM_WORDS_DROPPED_MAX):
        unusable = schema_problem(form)
        if unusable is None or not unusable[0] or unusable[0][-1] not in ("format", "pattern"):
            break
        *path, word = unusable[0]
        rules: Any = form
        for part in path:
            rules = rules[part]
        del rules[word]
    return form


def _written_out(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if depth > FORM_DEPTH_MAX:
        return {}
    whole = dict(schema)
    ref = whole.pop("$ref", None)
    if isinstance(ref, str):
        whole = {**definitions.get(ref.removeprefix(_REF), {}), **whole}
        return _written_out(whole, definitions, depth + 1)
    inner: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda s: _written_out(s, definitions, depth + 1)  # noqa: E731
    if isinstance(whole.get("allOf"), list) and len(whole["allOf"]) == 1:
        only = whole.pop("allOf")[0]
        return _written_out({**only, **whole}, definitions, depth + 1)
    if isinstance(whole.get("anyOf"), list):
        whole["anyOf"] = [inner(s) for s in whole["anyOf"]]
        whole = _one_type(whole)
    if isinstance(whole.get("properties"), dict):
        whole["properties"] = {k: inner(s) for k, s in whole["properties"].items()}
    if isinstance(whole.get("items"), dict):
        whole["items"] = inner(whole["items"])
    return whole


def _one_type(schema: dict[str, Any]) -> dict[str, Any]:
    """`int | None` becomes one schema with two types, which a form shows as one field."""
    parts: list[dict[str, Any]] = schema["anyOf"]
    bare = [p for p in parts if set(p) == {"type"} and isinstance(p["type"], str)]
    rest = [p for p in parts if p not in bare]
    if len(rest) > 1 or (rest and not isinstance(rest[0].get("type"), str)):
        return schema
    types = [p["type"] for p in (*rest, *bare)]
    out = {k: v for k, v in schema.items() if k != "anyOf"}
    if rest and "enum" in rest[0]:
        return {**out, **rest[0], "type": types, "enum": [*rest[0]["enum"], *([None] if "null" in types else [])]}
    return {**out, **(rest[0] if rest else {}), "type": types if len(types) > 1 else types[0]}
