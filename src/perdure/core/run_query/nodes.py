"""What a query text says, as a tree."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

Value = str | bool | Decimal | int | None
"""A text, a truth value, a number, a moment in Unix microseconds. None: the attribute is null, which no text can say."""


class Op(StrEnum):
    EQUAL = "="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    MORE = ">"
    MORE_OR_EQUAL = ">="
    PREFIX = "prefix"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True)
class Term:
    """`field op value`. `field` is one of FIELDS, or `attr`, and then `attribute` is its name."""

    field: str
    op: Op
    value: Value = None
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """Part of the key, the workflow's name, the error or the reason it is stuck, or the beginning of the id; in lower case."""

    text: str


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


@dataclass(frozen=True, slots=True)
class And:
    """True without parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """False without parts."""

    parts: tuple[Node, ...]


Node = Term | Search | Not | And | Or
