"""A query as a condition of SQL, and what is known of its matches before they are looked for.

Laws:

1. Every value is a bound parameter; names of columns and operators are constants of this file.
2. A condition is never null: each term that can be is made false.
3. Hints may be wider than the query and never narrower: every match has one of the statuses, lies in the range of ids, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.lifecycle import RUN_TERMINAL, RunStatus
from perdure.core.run_query import And, Node, Not, Op, Or, Search, Term
from perdure.store.sealing.codec import WORD

LOWEST: Final = bytes(16)
HIGHEST: Final = b"\xff" * 16
ENDED: Final = frozenset(status.word for status in RUN_TERMINAL)
ACTIVE: Final = frozenset({RunStatus.PENDING.word, RunStatus.RUNNING.word})
EVERY: Final = ENDED | ACTIVE
MS_MAX: Final = (1 << 48) - 1
_TEXTS: Final = {
    "workflow": "s.workflow",
    "version": "s.version",
    "key": "s.key",
    "error_code": "s.error_code",
    "waiting_on": "s.waiting_on",
    "status": "s.status",
    "id": "replace(s.run_id::text, '-', '')",
    "parent": "replace(s.parent_id::text, '-', '')",
}
_ONLY: Final = {"waiting_on": ACTIVE, "finished": ENDED, "error_code": ENDED}
"""Fields that only some runs have."""


class QueryCondition:
    """`sql` is a condition about the row `s`. Its parameters are numbered from `first`."""

    def __init__(self, node: Node, first: int) -> None:
        self._first = first
        self.parameters: list[Any] = []
        self.sql = self._of(node)

    def _bind(self, value: Any, kind: str = "text") -> str:
        self.parameters.append(value)
        return f"${self._first + len(self.parameters) - 1}::{kind}"

    def _of(self, node: Node) -> str:
        match node:
            case Term():
                return self._term(node)
            case Search():
                return self._search(node.text)
            case Not():
                return f"not {self._of(node.part)}"
            case And():
                return f"({' and '.join(map(self._of, node.parts)) or 'true'})"
            case Or():
                return f"({' or '.join(map(self._of, node.parts)) or 'false'})"

    def _search(self, text: str) -> str:
        t = self._bind(text)
        columns = " or ".join(f"position({t} in lower(s.{c})) > 0" for c in ("key", "workflow"))
        # An encrypted text is found by nothing: its base64 would match short words by chance.
        texts = " or ".join(f"position({t} in lower(split_part(s.{c}, '{WORD}', 1))) > 0" for c in ("error", "stuck"))
        starts = f"starts_with(s.run_id::text, {t}) or starts_with(replace(s.run_id::text, '-', ''), {t})"
        return f"coalesce({columns} or {texts} or {starts}, false)"

    def _term(self, term: Term) -> str:
        match term.field:
            case "attr":
                return self._attribute(term)
            case "stuck":
                return "s.stuck is not null" if term.value else "s.stuck is null"
            case "paused":
                return "s.paused_at is not null" if term.value else "s.paused_at is null"
            case "created":
                low, high = created_range(term)
                return f"(s.run_id >= {self._bind(low, 'uuid')} and s.run_id < {self._bind(high, 'uuid')})"
            case "finished":
                if term.op is Op.EXISTS:
                    return "(s.finished_at is not null)"
                return f"coalesce(s.finished_at {term.op.value} {self._bind(term.value, 'timestamptz')}, false)"
            case _:
                return self._text(_TEXTS[term.field], term)

    def _text(self, column: str, term: Term) -> str:
        if term.op is Op.EXISTS:
            return f"({column} is not null)"
        if term.op is Op.PREFIX:
            return f"coalesce(starts_with({column}, {self._bind(term.value)}), false)"
        return f'coalesce({column} collate "C" {term.op.value} {self._bind(term.value)}, false)'

    def _attribute(self, term: Term) -> str:
        if term.op is Op.EQUAL:
            return f"coalesce(s.attributes @> {self._bind(contained(term))}::jsonb, false)"
        name = self._bind(term.attribute)
        kind = f"jsonb_typeof(s.attributes -> {name})"
        if term.op is Op.EXISTS:
            return f"coalesce({kind} <> 'null', false)"
        value = f"(s.attributes ->> {name})"
        if isinstance(term.value, Decimal):
            compared = f"{value}::numeric {term.op.value} {self._bind(str(term.value))}::numeric"
            return f"coalesce(case when {kind} = 'number' then {compared} end, false)"
        given = self._bind(term.value)
        compared = (
            f"starts_with({value}, {given})" if term.op is Op.PREFIX else f'{value} collate "C" {term.op.value} {given}'
        )
        return f"coalesce(case when {kind} = 'string' then {compared} end, false)"


def contained(term: Term) -> str:
    """The JSON object that attributes contain if they are equal to the term."""
    value = term.value
    number = format(value, "f") if isinstance(value, Decimal) and abs(value.adjusted()) < 400 else str(value)
    shown = number if isinstance(value, Decimal) else msgspec.json.encode(value).decode()
    return f"{{{msgspec.json.encode(term.attribute).decode()}:{shown}}}"


def created_range(term: Term) -> tuple[bytes, bytes]:
    """The ids from the first to below the second are those of runs created then."""
    assert isinstance(term.value, int)
    whole, rest = divmod(term.value, 1000)
    up = whole + (rest > 0)
    low, high = {
        Op.EQUAL: (up, whole + 1),
        Op.LESS: (None, up),
        Op.LESS_OR_EQUAL: (None, whole + 1),
        Op.MORE: (whole + 1, None),
        Op.MORE_OR_EQUAL: (up, None),
    }[term.op]
    return LOWEST if low is None else first_id(low), HIGHEST if high is None else first_id(high)


def first_id(ms: int) -> bytes:
    """The smallest id of a millisecond."""
    return ids.lowest_at(min(max(ms, 0), MS_MAX)).bytes


@dataclass(frozen=True, slots=True)
class Hints:
    statuses: frozenset[str] = EVERY
    workflow: str | None = None
    low: bytes = LOWEST
    high: bytes = HIGHEST
    """Exclusive."""
    attributes: tuple[str, ...] = ()
    """JSON objects of which the attributes contain one; empty: nothing is known."""


def hints_of(node: Node) -> Hints:
    match node:
        case Term():
            return _hints_of_term(node)
        case Not(Term(field="status", value=status)):
            return Hints(statuses=EVERY - {status})
        case And():
            return _all([hints_of(part) for part in node.parts])
        case Or():
            return _any([hints_of(part) for part in node.parts])
        case _:
            return Hints()


def _hints_of_term(term: Term) -> Hints:
    match term.field, term.op:
        case "status", _:
            return Hints(statuses=frozenset({str(term.value)}))
        case "workflow", Op.EQUAL:
            return Hints(workflow=str(term.value))
        case "created", _:
            low, high = created_range(term)
            return Hints(low=low, high=high)
        case "id", _:
            digits = str(term.value)
            return Hints(low=bytes.fromhex(digits.ljust(32, "0")), high=_above(bytes.fromhex(digits.ljust(32, "f"))))
        case (("stuck" | "paused"), _):
            return Hints(statuses=ACTIVE if term.value else EVERY)
        case "attr", Op.EQUAL:
            return Hints(attributes=(contained(term),))
        case _:
            return Hints(statuses=_ONLY.get(term.field, EVERY))


def _above(id: bytes) -> bytes:
    return HIGHEST if id == HIGHEST else (int.from_bytes(id, "big") + 1).to_bytes(16, "big")


def _all(parts: list[Hints]) -> Hints:
    found = Hints()
    for part in parts:
        contradicts = found.workflow is not None and part.workflow not in (None, found.workflow)
        rarer = part.attributes and (not found.attributes or len(part.attributes) < len(found.attributes))
        found = Hints(
            frozenset() if contradicts else found.statuses & part.statuses,
            found.workflow if found.workflow is not None else part.workflow,
            max(found.low, part.low),
            min(found.high, part.high),
            part.attributes if rarer else found.attributes,
        )
    return found


def _any(parts: list[Hints]) -> Hints:
    if not parts:
        return Hints(statuses=frozenset())
    first = parts[0]
    found = replace(
        first, attributes=tuple(a for p in parts for a in p.attributes) if all(p.attributes for p in parts) else ()
    )
    for part in parts[1:]:
        found = replace(
            found,
            statuses=found.statuses | part.statuses,
            workflow=found.workflow if found.workflow == part.workflow else None,
            low=min(found.low, part.low),
            high=max(found.high, part.high),
        )
    return found


def is_answered_by(node: Node, *, workflow: str | None, statuses: frozenset[str], low: bytes, high: bytes) -> bool:
    """Whether every run of this workflow (None: of any) with one of these statuses and an id in this range matches."""
    match node:
        case And():
            return all(
                is_answered_by(part, workflow=workflow, statuses=statuses, low=low, high=high) for part in node.parts
            )
        case Or():
            if node.parts and all(isinstance(p, Term) and p.field == "status" for p in node.parts):
                return statuses <= {p.value for p in node.parts if isinstance(p, Term)}
            return any(
                is_answered_by(part, workflow=workflow, statuses=statuses, low=low, high=high) for part in node.parts
            )
        case Term(field="workflow", op=Op.EQUAL):
            return node.value == workflow
        case Term(field="status"):
            return statuses <= {node.value}
        case Term(field="created"):
            first, last = created_range(node)
            return first <= low and high <= last
        case _:
            return False
