"""How far a run of a flow is, node by node: its decider, shown the run's history and asked.

Executions of a spread, and the bodies inside one, are one node of a picture: it has the status most worth knowing among theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from perdure.core.events import Recorded
from perdure.flows.decide.decider import Decider
from perdure.flows.model import Approval, Body, Embedded, Flow, Sleep, Wait

_PLACE: Final = re.compile(r"\[\d+\]")
_WORTH: Final = ("failed", "running", "waiting", "pending", "cancelled", "success", "skipped")
"""What is worth knowing of several, the most first."""


def statuses_of(
    flow: Flow, run_id: bytes, history: list[Recorded], is_up: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """Status words by path (`chart.Item.path`). Nodes of inner bodies that are over may be missing. Nothing when the time is up before
    the history is worked off."""
    decider = Decider(flow, run_id)
    decider.give(history, replay=True)
    if not decider.advance(is_up):
        return {}
    waits = _waits(flow.body, "")
    out: dict[str, str] = {}
    for label, status in decider.statuses().items():
        path = _PLACE.sub("", label)
        word = "waiting" if status == "running" and path in waits else status
        out[path] = word if path not in out else min(out[path], word, key=_rank)
    return out


def _rank(word: str) -> int:
    return _WORTH.index(word) if word in _WORTH else len(_WORTH)


def _waits(body: Body, prefix: str) -> frozenset[str]:
    """Nodes that wait for the world rather than work."""
    found: set[str] = set()
    for node in body.nodes:
        if isinstance(node.verb, (Approval, Sleep, Wait)):
            found.add(f"{prefix}{node.key}")
        elif isinstance(node.verb, Embedded):
            found |= _waits(node.verb.body, f"{prefix}{node.key}.")
    return frozenset(found)
