"""What makes a test heavy. Heavy tests run in the nightly tier, all others in the gate."""

from __future__ import annotations

from typing import Final

import pytest

HEAVY_FIXTURES: Final = (
    "processes",  # it starts servers, workers or programs that each import all of Perdure: seconds of processor time
)
"""A fixture that starts such processes for its tests, of whatever scope, requests one of these. So this list does not grow with the suite."""
LIGHT_FIXTURES: Final = (
    "interpreter",  # it starts Python for less than about a second: a script, an import check, a job
)


MARK: Final = "starts"


def fixtures_of(item: pytest.Item) -> set[str]:
    """By name. For one parameter of a test, `pytest.param(..., marks=pytest.mark.starts("processes"))` names one: pytest has no other way."""
    marked = {name for mark in item.iter_markers(MARK) for name in mark.args}
    return marked | set(getattr(item, "fixturenames", ()))


def is_heavy(item: pytest.Item) -> bool:
    return not fixtures_of(item).isdisjoint(HEAVY_FIXTURES)
