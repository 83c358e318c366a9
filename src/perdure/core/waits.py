"""What a run waits for from outside: promises, approvals, named events, signals and updates. The same for workflow code and for flows.

A waiter `W` is a step of code or an execution of a flow; this module keeps it and hands it back, and knows nothing else of it.

Laws:

1. The first value of a promise stands. A value that comes before anything waits for it is kept.
2. Each approval is a question of its own: the second one of a name has the promise `name#2`. So is each wait for a named event; its
   promise belongs to this run alone, so an event that comes late means nothing to the run's successor.
3. A value answers the question it was given to (core/questions.py), not another one of that name.
4. A wait for a named event that was given up keeps its promise, and the next wait with the same question takes it up, if it doesn't look
   further back: an event in between is not missed, and a loop that waits again and again leaves one wait behind, not many.
5. A signal or an update goes to one waiter, the one that has waited longest. Without a waiter it is buffered, in order of arrival.
6. A name is full from SIGNALS_BUFFERED_MAX buffered messages on, until half of them are read. What arrives then is buffered all the same:
   senders are refused, the run never fails of it.

The order of everything here depends on the order of calls alone, so a replay gets the same answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from perdure.core import events as ev
from perdure.core.limits import SIGNALS_BUFFERED_MAX
from perdure.core.questions import Values

V = TypeVar("V")
W = TypeVar("W")

EVENT_PREFIX: Final = "event:"


class _EventQuestion(msgspec.Struct, frozen=True, gc=False):
    """What counts of the spec of a wait for a named event (core/named_events.py)."""

    event: str
    since_us: int = 0
    key: str = ""

    def covers(self, other: _EventQuestion) -> bool:
        """Whether a wait gets every event that the other would get. 0 is only later events."""
        return not other.since_us or 0 < self.since_us <= other.since_us


_read_question: Final = msgspec.json.Decoder(_EventQuestion).decode


def event_promise_name(event: str, n: int, run_id: bytes) -> str:
    """The promise behind the n-th wait of a run for a named event (law 2)."""
    return f"{EVENT_PREFIX}{event}#{n}@{run_id[-4:].hex()}"


class PromiseWaits(Generic[W]):
    """Promises of one run, among them its approvals and its waits for named events."""

    __slots__ = ("_asked", "_created", "_given_up", "_run_id", "_values", "_waiters")

    def __init__(self, run_id: bytes) -> None:
        self._run_id = run_id
        self._created: dict[str, ev.PromiseCreated] = {}
        """By name, as they are recorded."""
        self._values = Values()
        self._waiters: dict[str, list[W]] = {}
        self._asked: dict[str, int] = {}
        """How often an approval or a named event was asked for."""
        self._given_up: dict[str, list[tuple[_EventQuestion, str]]] = {}
        """Waits for named events that were given up, by key of the question."""

    def name_after(self, run_id: bytes) -> None:
        """Of a fork: its waits for named events are called as in the run that its history was copied from."""
        self._run_id = run_id

    def approval_name(self, name: str) -> str:
        """The name of the promise of the next approval of this name."""
        n = self._asked[name] = self._asked.get(name, 0) + 1
        return name if n == 1 else f"{name}#{n}"

    def event_wait(self, event: str, spec: bytes) -> tuple[str, int]:
        """Name and sequence number of the promise for the next wait of this spec; -1: it has to be created."""
        question = _read_question(spec)
        given_up = self._given_up.get(question.key, [])
        for i in reversed(range(len(given_up))):
            earlier, name = given_up[i]
            if earlier.covers(question):
                del given_up[i]
                return name, self._created[name].seq
        key = EVENT_PREFIX + event
        n = self._asked[key] = self._asked.get(key, 0) + 1
        return event_promise_name(event, n, self._run_id), -1

    def give_up_event(self, spec: bytes, name: str) -> None:
        """A wait ends without its event (law 4)."""
        question = _read_question(spec)
        self._given_up.setdefault(question.key, []).append((question, name))

    def created(self, created: ev.PromiseCreated) -> None:
        """The run asks for a promise."""
        self._created[created.name] = created

    def value(self, name: str) -> bytes | None:
        """What the promise that was asked for was resolved with, if it was."""
        return self._values.of(self._created[name])

    def wait(self, name: str, waiter: W) -> None:
        self._waiters.setdefault(name, []).append(waiter)

    def stop_waiting(self, name: str) -> None:
        self._waiters.pop(name, None)

    def stop_all(self) -> None:
        self._waiters.clear()

    def resolve(self, e: ev.PromiseResolved) -> Sequence[W]:
        """A promise gets a value. Returns what waited for it."""
        self._values.put(e.name, e.question, e.value, authorized=e.authorized)
        created = self._created.get(e.name)
        if created is None or self._values.of(created) is None:
            return ()
        return self._waiters.pop(e.name, ())

    def unclaimed(self) -> list[tuple[str, bytes]]:
        """Values that were given to names that the run never asked for."""
        return [(name, value) for name, value in self._values.by_name() if name not in self._created]

    def waiting_names(self) -> list[str]:
        return [name for name, waiters in self._waiters.items() if waiters]


class MessageWaits(Generic[V, W]):
    """Signals, or updates, of one run by name (law 5)."""

    __slots__ = ("_buffers", "_waiters", "buffered", "full")

    def __init__(self) -> None:
        self._buffers: dict[str, deque[V]] = {}
        self._waiters: dict[str, deque[W]] = {}
        self.buffered = 0
        """Messages of all names that nothing has taken."""
        self.full: set[str] = set()
        """Names of which no more should be sent (law 6)."""

    def next_waiter(self, name: str) -> W | None:
        """The one that has waited longest; it waits no more."""
        waiters = self._waiters.get(name)
        return waiters.popleft() if waiters else None

    def buffer(self, name: str, message: V) -> int:
        """Keep a message for later. Returns how many of its name are kept."""
        buffer = self._buffers.setdefault(name, deque())
        buffer.append(message)
        self.buffered += 1
        if len(buffer) >= SIGNALS_BUFFERED_MAX:
            self.full.add(name)
        return len(buffer)

    def take(self, name: str) -> V | None:
        """The oldest message of a name."""
        buffer = self._buffers.get(name)
        if not buffer:
            return None
        self.buffered -= 1
        message = buffer.popleft()
        if self.full and len(buffer) <= SIGNALS_BUFFERED_MAX // 2:
            self.full.discard(name)
        return message

    def take_all(self, name: str) -> Sequence[V]:
        messages = self._buffers.pop(name, ())
        self.buffered -= len(messages)
        self.full.discard(name)
        return messages

    def wait(self, name: str, waiter: W) -> None:
        self._waiters.setdefault(name, deque()).append(waiter)

    def stop_waiting(self, name: str, waiter: W) -> None:
        waiters = self._waiters.get(name)
        if waiters and waiter in waiters:
            waiters.remove(waiter)

    def stop_all(self) -> None:
        self._waiters.clear()

    def forget_if(self, is_done: Callable[[W], bool]) -> None:
        """Drop waiters that have given up, at the front of the queue."""
        for name in list(self._waiters):
            waiters = self._waiters[name]
            while waiters and is_done(waiters[0]):
                waiters.popleft()
            if not waiters:
                del self._waiters[name]

    def unclaimed(self) -> list[tuple[str, V]]:
        return [(name, message) for name, buffer in self._buffers.items() for message in buffer]

    def waiting_names(self) -> list[str]:
        return [name for name, waiters in self._waiters.items() if waiters]
