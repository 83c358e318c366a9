"""What becomes of the children of a run that ends, by their parent-close policies."""

from __future__ import annotations

from typing import Final

from perdure.core import events as ev
from perdure.core.messages import CancelMessage, TerminateMessage
from perdure.engine.runs.run import ActiveRun

PARENT_ENDED: Final = "its parent has ended"


def close_children(run: ActiveRun) -> None:
    """Children that are abandoned go on; their end is a message that no run takes."""
    policies = run.state.close_policies
    for seq, child_id in run.state.children.items():
        match policies.get(seq, "cancel"):
            case "abandon":
                continue
            case "terminate":
                run.send(child_id, TerminateMessage(PARENT_ENDED))
            case _:
                run.send(child_id, CancelMessage(PARENT_ENDED))
        run.record(ev.ChildCancelRequested(seq))
