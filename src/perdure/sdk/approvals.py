"""`Approval`: a question to people, used at both ends. A workflow waits for what they decide; anybody outside answers, delegates, makes links.

Every `wait()` asks anew: the second one of a run is called `name#2`, for those outside `nth=2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, cast, overload

import msgspec

from perdure.core.api import approvals
from perdure.core.api.approvals import AnswerApproval, CreateLink, DelegateApproval
from perdure.core.approvals import Answer, Spec, check_names, encode_spec, read_answer
from perdure.core.durations import Duration, to_us
from perdure.core.errors import ApprovalRejected, Failure, InvalidInput, PerdureError
from perdure.core.json_schema import schema_problem
from perdure.core.names import checked_name
from perdure.sdk.client.backend import backend
from perdure.sdk.payloads import Converter
from perdure.sdk.payloads.schemas import schemas_of
from perdure.sdk.workflow.instance import current
from perdure.sdk.workflow.step import Step

T = TypeVar("T")

FORM_WORDS_DROPPED_MAX: Final = 100
"""Formats and patterns of one form that are left to its type."""
FORM_DEPTH_MAX: Final = 8
"""Levels of a form that are written out; what lies deeper takes anything."""
_REF: Final = "#/$defs/"


class Approval(Generic[T]):
    """People say yes or no, and with a type fill in a form.

    `await approval.wait()` gives the form's value, None for an approval without a type. A no raises ApprovalRejected, and nobody's answer
    in time TimeoutError. `assignees` are names of people or keys; nobody in particular: whoever may operate runs. So many as `quorum`
    have to say yes, or `reject_quorum` no. From `escalate_after` on, those in `escalate_to` may answer too.
    """

    @overload
    def __init__(
        self: Approval[None],
        name: str,
        type: None = None,
        *,
        title: str = "",
        description: str = "",
        assignees: Sequence[str] = (),
        quorum: int = 1,
        reject_quorum: int = 1,
        deadline: Duration | None = None,
        escalate_after: Duration | None = None,
        escalate_to: Sequence[str] = (),
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        type: type[T],
        *,
        title: str = "",
        description: str = "",
        assignees: Sequence[str] = (),
        quorum: int = 1,
        reject_quorum: int = 1,
        deadline: Duration | None = None,
        escalate_after: Duration | None = None,
        escalate_to: Sequence[str] = (),
    ) -> None: ...
    def __init__(
        self,
        name: str,
        type: Any = None,
        *,
        title: str = "",
        description: str = "",
        assignees: Sequence[str] = (),
        quorum: int = 1,
        reject_quorum: int = 1,
        deadline: Duration | None = None,
        escalate_after: Duration | None = None,
        escalate_to: Sequence[str] = (),
    ) -> None:
        self.name = checked_name("approval", name)
        self._converter: Converter[Any] | None = Converter.of(type) if type is not None else None
        self._form = form_of(type) if type is not None else None
        self._deadline_us = to_us(deadline) if deadline is not None else 0
        self._escalate_us = to_us(escalate_after) if escalate_after is not None else 0
        self._asked = Spec(
            title=title or name,
            quorum=quorum,
            reject_quorum=reject_quorum,
            description=description,
            form=self._form,
            assignees=_people(assignees, "assignees"),
            escalate_us=self._escalate_us or None,
            escalate_to=_people(escalate_to, "escalate_to"),
        )
        encode_spec(self._asked)  # what can never work is said where it is written

    # -- inside a workflow -------------------------------------------------------------------------------------------

    def wait(
        self,
        timeout: Duration | None = None,
        *,
        title: str | None = None,
        details: Any = None,
        assignees: Sequence[str] | None = None,
    ) -> Step[T]:
        """Ask, and wait for the decision. `timeout` instead of the approval's own deadline; `details` are shown to people."""
        runtime = current.get(None)
        if runtime is None:
            raise PerdureError(f"Approval({self.name!r}).wait() works inside a workflow only")
        limit_us = to_us(timeout) if timeout is not None else self._deadline_us
        now_us = runtime.now_us
        spec = msgspec.structs.replace(
            self._asked,
            title=title or self._asked.title,
            details=details,
            assignees=self._asked.assignees if assignees is None else _people(assignees, "assignees"),
            deadline_us=now_us + limit_us if limit_us else None,
            escalate_us=now_us + self._escalate_us if self._escalate_us else None,
        )
        return runtime.wait_promise(
            runtime.ask_again(self.name),
            self._decode,
            limit_us,
            encode_spec(spec),
            f"nobody decided on {self.name!r} in time",
        )

    def _decode(self, data: bytes) -> Any:
        answer = answer_of(data)
        if not answer.approved:
            who = ", ".join(answer.by) or "somebody"
            said = f"{self.name} was rejected by {who}{f': {answer.comment}' if answer.comment else ''}"
            raise ApprovalRejected(
                Failure(ApprovalRejected.code, said, ApprovalRejected.__name__), answer.by, answer.comment
            )
        if self._converter is None:
            return None
        return self._converter.decode(msgspec.json.encode(answer.value))

    # -- outside -----------------------------------------------------------------------------------------------------

    async def approve(
        self, run_id: str, value: T | None = None, *, by: str = "", comment: str = "", nth: int = 1
    ) -> bool:
        """Say yes. True when that decides it. `by`: in whose name; your own unless given (a server lets only administrators say)."""
        data = b"null" if value is None or self._converter is None else self._converter.encode(value)
        return await self._answer(AnswerApproval(run_id, self._nth(nth), True, data, comment, by))

    async def reject(self, run_id: str, *, by: str = "", comment: str = "", nth: int = 1) -> bool:
        """Say no. True when that decides it."""
        return await self._answer(AnswerApproval(run_id, self._nth(nth), False, b"null", comment, by))

    async def _answer(self, answer: AnswerApproval) -> bool:
        return (await backend().call(approvals.ANSWER, answer)).resolved_us is not None

    async def resolve(self, run_id: str, value: T) -> None:
        """Say yes with a value: what a promise is resolved with."""
        await self.approve(run_id, value)

    async def delegate(self, run_id: str, to: str, *, by: str = "", nth: int = 1) -> None:
        """Hand over to somebody else: `to` is asked instead of `by`."""
        await backend().call(approvals.DELEGATE, DelegateApproval(run_id, self._nth(nth), to, by))

    async def link(self, run_id: str, who: str, *, expires_in: Duration | None = None, nth: int = 1) -> str:
        """The address of a page where `who` can answer, once and without any credential. Whoever has the link has the answer: send it
        to them alone."""
        lasts_us = to_us(expires_in) if expires_in is not None else 0
        link = CreateLink(run_id, "approval", self._nth(nth), who, lasts_us)
        return (await backend().call(approvals.CREATE_LINK, link)).url

    def _nth(self, nth: int) -> str:
        if nth < 1:
            raise InvalidInput(f"nth={nth}: the first time this is asked for is nth=1")
        return self.name if nth == 1 else f"{self.name}#{nth}"


def answer_of(data: bytes) -> Answer:
    """People's decision; or what somebody resolved the promise with by hand: true, false, a decision without votes, or the value itself."""
    value: Any = msgspec.json.decode(data or b"null")
    found = read_answer(value)
    if found is not None:
        return found
    if isinstance(value, bool):
        return Answer(value)
    if isinstance(value, dict):
        given = cast(dict[str, Any], value)
        if given.get("approved") is False:
            return Answer(False, comment=str(given.get("comment") or ""))
        return Answer(True, value=given.get("value", given))
    return Answer(True, value=value)


def _people(names: Sequence[str], what: str) -> list[str]:
    if isinstance(names, str):
        raise InvalidInput(f"{what} is a list of names; write [{names!r}]")
    check_names(names, what)
    return list(dict.fromkeys(names))


# -- forms ---------------------------------------------------------------------------------------------------------------


def form_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type with everything in its place, as a form needs it."""
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
    """`int | None` is one thing with two types: then it can be checked, and there is a field for it."""
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
