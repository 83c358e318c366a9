"""A recorded run as the function of a query sees it. It takes the place of the live run (live_run.py), and only reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from perdure.core.errors import WorkflowRuleBroken
from perdure.core.work import QueryCall
from perdure.sdk.workflow.current_run import CurrentRun

_REFUSED: Final = {
    "requests": "calling a task, a child workflow, a timer or wf.run() does",
    "signals": "waiting for a signal does",
    "promises": "waiting for a promise, an approval or a named event does",
    "updates": "handling updates does",
    "set_state": "State.set() or State.clear() does",
    "set_attribute": "wf.set_attribute() does",
    "attribute": "wf.attribute() does",
    "undo": "the undo stack does",
    "refuse_left_undos": "wf.continue_as_new() does",
    "uuid": "wf.uuid() does",
    "randomness": "wf.random() does",
    "journal": "wf.patched() does",
    "now_us": "wf.now() does",
    "started": "wf.nominal_time() does",
}
"""Parts of a live run that a recorded one does not have, by what uses them."""


class RecordedStates:
    """The states of a run. One that is kept in the payload store is loaded when it is read."""

    def __init__(self, states: dict[str, bytes], load: Callable[[bytes], bytes]) -> None:
        self._states, self._load = states, load

    def get(self, name: str) -> bytes | None:
        data = self._states.get(name)
        return None if data is None else self._load(data)


class QueriedRun:
    def __init__(self, call: QueryCall, workflow: Any, load: Callable[[bytes], bytes]) -> None:
        """`load` puts stored values in the place of their references."""
        self.run_id = call.run_id
        self.state = RecordedStates(call.states, load)
        self._call, self._workflow, self._load = call, workflow, load

    def info(self) -> CurrentRun:
        call = self._call
        return CurrentRun(call.run_id, self._workflow, call.key, call.status, lambda: self._load(call.input))

    def captured_output(self) -> None:
        """What a query prints is not recorded with the run."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # a protocol of Python's, not something that user code asked for
            raise AttributeError(name)
        what = _REFUSED.get(name, f"{name} does")
        raise WorkflowRuleBroken(
            f"{what} not work in a query, which only reads: it has State.get(), wf.run_id() and wf.info(). "
            "To change the run, send it a signal or an update"
        )
