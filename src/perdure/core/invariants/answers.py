"""Which answers of a history are to questions that it asks."""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core.questions import asked_by


class Answers:
    """Questions of one run, and answers to what it had not asked by then."""

    def __init__(self) -> None:
        self._asked: set[tuple[str, bytes]] = set()
        self._unasked: dict[int, str] = {}
        """Number of the event -> name."""

    def apply(self, seq: int, event: ev.PromiseCreated | ev.PromiseResolved) -> int:
        """How many answers it is."""
        if isinstance(event, ev.PromiseCreated):
            self._asked.add((event.name, asked_by(event)))
            return 0
        if event.question and (event.name, event.question) not in self._asked:
            self._unasked[seq] = event.name
        return bool(event.question)

    def unasked_after(self, seq: int) -> list[tuple[int, str]]:
        return [(n, name) for n, name in self._unasked.items() if n > seq]
