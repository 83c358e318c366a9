"""What the parts of a live run need of it. `LiveRun` implements it and is made of the parts, so they do not import it."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.core.journal import Journal
from perdure.sdk.workflow.loop import WorkflowLoop


class UndoLog(Protocol):
    """Hears of tasks that have an undo."""

    def check_room(self, count: int) -> None: ...
    def expect(self, first: int, calls: list[bytes], name: str, undo: Any) -> None: ...
    def succeeded(self, seq: int, value: bytes) -> None: ...
    def failed(self, seq: int) -> None: ...


class RunHost(Protocol):
    run_id: bytes
    journal: Journal
    loop: WorkflowLoop
    now_us: int
    """Database time of the event that is being applied."""
    event_seq: int
    """Number of that event."""
    steps: int
    """Steps made so far."""

    @property
    def seed(self) -> bytes:
        """The id that names and randomness follow from."""
        ...

    @property
    def closed(self) -> bool:
        """Nothing may be recorded any more."""
        ...

    @property
    def undo(self) -> UndoLog: ...

    @property
    def undo_if_any(self) -> UndoLog | None: ...

    def set_state(self, name: str, value: bytes | None) -> None: ...
