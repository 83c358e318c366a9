"""Label selectors: `a=b,c!=d,e in (f,g),h,!i`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tests.executors.kubernetes_emulator.rules import label_key_problem, label_value_problem
from tests.executors.kubernetes_emulator.status import bad_request

_PART = re.compile(
    r"\s*(?:(?P<absent>!\s*[^\s,=!()]+)|(?P<key>[^\s,=!()]+)(?:\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,=!()]*)"
    r"|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|\Z)"
)


class Requirement(NamedTuple):
    key: str
    is_wanted: bool
    values: frozenset[str] | None
    """None: any value."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        has = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return has == self.is_wanted


class Selector(tuple[Requirement, ...]):
    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(one.matches(labels) for one in self)


def parse_selector(text: str) -> Selector:
    found: list[Requirement] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise bad_request(f"unable to parse requirement: found '{text[at:]}'")
        found.append(_requirement(part))
        at = part.end()
    if text.rstrip().endswith(","):
        raise bad_request("unable to parse requirement: found '', expected: identifier after ','")
    return Selector(found)


def _requirement(part: re.Match[str]) -> Requirement:
    if part["absent"]:
        one = Requirement(part["absent"][1:].strip(), False, None)
    elif part["set"]:
        values = frozenset(value.strip() for value in part["values"].split(","))
        one = Requirement(part["key"], part["set"] == "in", values)
    elif part["op"]:
        one = Requirement(part["key"], part["op"] != "!=", frozenset({part["value"]}))
    else:
        one = Requirement(part["key"], True, None)
    problem = label_key_problem(one.key) or next(filter(None, map(label_value_problem, one.values or ())), "")
    if problem:
        raise bad_request(f"unable to parse requirement: {problem}")
    return one
