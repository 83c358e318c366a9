"""One rule for names, wherever they come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Approval, Promise, Signal, State, Update, task, workflow
from perdure.core import named_events
from perdure.core.names import checked_name, escaped
from perdure.engine.api import flow_control
from perdure.errors import InvalidInput
from perdure.flows import scheduled
from perdure.flows.compile import compile_value
from perdure.flows.problems import FlowError

BAD = ["", "a\nb", "a\x1b[2Jb", "a\x00", "a\x7f", "a\x9b", "a\u202eb", "a\u2066b", "a\u200fb", "a\u2028b", "x" * 201]
GOOD = ["a", "Größe", "注文", "a b", "a/b:c", "👩\u200d💻", "x" * 200]


async def nothing() -> None: ...


DOORS: dict[str, Callable[[str], Any]] = {
    "signal": lambda name: Signal(name, int),
    "promise": lambda name: Promise(name, int),
    "state": lambda name: State(name, 0),
    "update": lambda name: Update(name, int, int),
    "approval": Approval,
    "task": lambda name: task(name=name)(nothing),
    "workflow": lambda name: workflow(name=name)(nothing),
    "queue": lambda name: task(name="t", queue=name)(nothing),
    "run": lambda name: workflow(name="w")(nothing).options(key=name),
    "schedule": scheduled.check_name,
    "named event": named_events.check_name,
    "message": lambda name: checked_name("signal", name),
    "rule": lambda name: flow_control.checked_scope("queue", name),
    "flow": lambda name: compile_value({"flow": name, "tasks": {"a": {"value": 1}}}),
    "flow's queue": lambda name: compile_value({"flow": "f", "tasks": {"a": {"python": "p", "queue": name}}}),
}
MAY_BE_EMPTY = {"queue", "task", "workflow", "flow", "flow's queue", "run"}
"""Empty is not said."""


@pytest.mark.parametrize("door", DOORS)
def test_a_bad_name_is_refused_everywhere_in_the_same_words(door: str) -> None:
    for name in BAD:
        if (name == "" and door in MAY_BE_EMPTY) or (len(name) > 200 and door in ("named event",)):
            continue
        with pytest.raises((InvalidInput, FlowError)) as raised:
            DOORS[door](name)
        said = str(raised.value)
        assert "without control characters" in said or len(name) > 200 or not name
        assert not any(c in said for c in "\x1b\x00\x7f\x9b\u202e\u2066\u200f\u2028")


def test_the_wording() -> None:
    with pytest.raises(InvalidInput) as raised:
        checked_name("signal", "a\x1b")
    assert str(raised.value) == r"invalid signal name 'a\u001b': use 1 to 200 characters without control characters"
    for name in GOOD:
        assert checked_name("signal", name) == name


def test_what_a_terminal_obeys_is_written_out() -> None:
    assert escaped("a\x1b[31m\u202e\r\n\tb") == "a\\u001b[31m\\u202e\\u000d\n\tb"
    assert escaped("a\nb", keep="") == "a\\u000ab"
    assert escaped("Größe 注文 👩\u200d💻") == "Größe 注文 👩\u200d💻"
