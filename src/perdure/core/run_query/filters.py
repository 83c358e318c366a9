"""The filters of a list as a query: a list has one meaning."""

from __future__ import annotations

from decimal import Decimal

from perdure.core.api.runs import RunFilter
from perdure.core.attributes import AttributeValue, decode_attributes
from perdure.core.lifecycle import RunStatus
from perdure.core.run_query.nodes import And, Node, Op, Or, Search, Term, Value
from perdure.core.run_query.parse import parse


def query_of(f: RunFilter, now_us: int) -> Node:
    """All filters but `waiting_on`, and the query text. Raises InvalidInput."""
    parts: list[Node] = []
    if f.statuses:
        parts.append(Or(tuple(Term("status", Op.EQUAL, RunStatus(s).word) for s in sorted(f.statuses))))
    if f.workflow:
        parts.append(Term("workflow", Op.EQUAL, f.workflow))
    if f.since_us is not None:  # a moment inside a millisecond takes all of it
        parts.append(Term("created", Op.MORE_OR_EQUAL, f.since_us // 1000 * 1000))
    if f.until_us is not None:
        parts.append(Term("created", Op.LESS, f.until_us))
    if f.attributes:
        parts.append(Or(tuple(_has(one) for one in f.attributes)))
    if f.text:
        parts.append(Search(f.text.lower()))
    if f.query:
        parts.append(parse(f.query, now_us))
    return And(tuple(parts))


def _has(attributes: bytes) -> Node:
    found = decode_attributes(attributes)
    return And(tuple(Term("attr", Op.EQUAL, _value(value), name) for name, value in found.items()))


def _value(value: AttributeValue | None) -> Value:
    return value if value is None or isinstance(value, str | bool) else Decimal(repr(value))
