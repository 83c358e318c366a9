"""What a bulk job does with a run, as far as its status decides that."""

from __future__ import annotations

from perdure.core.api.bulk_jobs import BulkAction
from perdure.core.api.runs import RunItem
from perdure.core.lifecycle import RUN_TERMINAL, RunStatus


def nothing_to_do(action: BulkAction, run: RunItem) -> str:
    """Why the action does not apply to the run; empty if it does."""
    status = RunStatus(run.status)
    match action:
        case "cancel" | "terminate" | "pause" | "signal" if status in RUN_TERMINAL:
            return f"the run has ended ({status.word})"
        case "pause" if run.paused_us is not None:
            return "the run is paused already"
        case "resume" if status in RUN_TERMINAL or (run.paused_us is None and run.stuck is None):
            return "the run is neither paused nor stuck"
        case "retry" if status is not RunStatus.FAILED:
            return f"the run has not failed ({status.word})"
        case "delete" if status not in RUN_TERMINAL:
            return f"the run is active ({status.word})"
        case _:
            return ""
