"""The phases of a run in the memory of the engine that owns it, and the only transitions between them.

Rule 1: everything that decides what may happen to a run next lives here. Other modules ask `run.phase`, and change it by
`run.phase = SOME_EVENT[run.phase]`. A pair that is not in the table does not happen: it raises IllegalTransition, which names both.

                                   CODE_LOST (from every phase above the line)
                            .-------------------------------------------.
                            v                                           |
    LOADING --LOADED--> REPLAY_READY --ACTIVATED--> DECIDING --DECIDED--> IDLE
       |    \\              ^  ^                     ^    |  (or READY)    |
       |     '--FACTS------'  '--RELOADED-- RELOADING   |                |
       |                                           READY <----FACTS-----'
       |                                             '--ACTIVATED--> DECIDING
    ---+-----------------------------------------------------------------------------------------
       '--ENDED--> Closing(outcome)         '--RELEASED--> Leaving(release)
                        '----------SET_ASIDE---------> Leaving(release)

Theory:

- An active phase answers one question: what does the code of the run know? In LOADING and REPLAY_READY it knows nothing yet and gets the
  whole history; in READY there are durable facts that it has not seen; in DECIDING it was given them and has not answered; in IDLE it has
  seen everything; in RELOADING the worker that held it is gone.
- Facts that become durable while the code decides, or while its history is read again, wait in `run.deliver` and change no phase.
- A decision that comes when none is awaited changes no phase either: it is of a worker that was replaced, or spontaneous.
- Closing and Leaving are absorbing and carry their data, so that a run has an outcome if and only if it is closing. The last commit
  removes the run from memory. Only a record that the database refuses, or a fault of this engine, turns a closing run into a leaving one.
- Three facts are independent of the phase and stay attributes of the run: whether a commit of it is on its way (`writing`), whether rows
  of its inbox were consumed (`inbox_used`), and whether engines before this one did not survive it (`suspect`).

Phases without data are single objects, and a table is a dict by phase: a transition costs one look-up and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from perdure.core.errors import Failure, IllegalTransition
from perdure.core.lifecycle import RunStatus
from perdure.engine.commits.write_queue import Unit

T = TypeVar("T")


class Phase:
    """Compare with `is`. Closing and Leaving are matched by type."""

    __slots__ = (
        "is_active",
        "is_ready",
        "name",
        "replay",
    )  # slots, not class attributes: they are read several times per task

    def __init__(self, name: str, *, is_active: bool = True, is_ready: bool = False, replay: bool = False) -> None:
        self.name = name
        self.is_active = is_active
        """It takes messages, timers, results of tasks and decisions."""
        self.is_ready = is_ready
        """The loop is to activate its code."""
        self.replay = replay
        """No worker holds the code: the activation carries the whole history."""

    def __repr__(self) -> str:
        return self.name


class Closing(Phase):
    """Its end is being written."""

    __slots__ = ("failure", "status", "successor", "value")

    def __init__(self, status: RunStatus, value: bytes, failure: Failure | None, successor: bytes | None) -> None:
        self.name = "CLOSING"
        self.is_active = self.is_ready = self.replay = (
            False  # without super().__init__: this runs at the end of every run
        )
        self.status, self.value, self.failure, self.successor = status, value, failure, successor


class DeferredEnds:
    """Ends of attempts whose run is leaving; they are written once it has left.

    The commit that hands a run back may be the one that writes the rows of its attempts. An end that is written before it, or with it, does not
    find the row, and the task would count as running for ever.
    """

    __slots__ = ("_units",)

    def __init__(self) -> None:
        self._units: list[Unit] | None = []
        """None: the run has left."""

    @property
    def is_waiting(self) -> bool:
        """Whether the run has not left yet: rows of its attempts may be missing."""
        return self._units is not None

    def take(self, end: Unit) -> bool:
        """Whether the end has to wait."""
        if self._units is None:
            return False
        self._units.append(end)
        return True

    def release(self) -> list[Unit]:
        units, self._units = self._units or [], None
        return units


class Leaving(Phase):
    """It is being handed back to the database."""

    __slots__ = ("ends", "stuck", "wake_us")

    def __init__(self, wake_us: int | None, stuck: str | None) -> None:
        super().__init__("LEAVING", is_active=False)
        self.wake_us, self.stuck = wake_us, stuck
        self.ends = DeferredEnds()


LOADING: Final = Phase("LOADING")
"""Its history is known, and it waits for a record to be durable before its code gets it."""
REPLAY_READY: Final = Phase("REPLAY_READY", is_ready=True, replay=True)
READY: Final = Phase("READY", is_ready=True)
DECIDING: Final = Phase("DECIDING")
RELOADING: Final = Phase("RELOADING")
"""The worker that held the code is gone; the history is read again once all of it is written."""
IDLE: Final = Phase("IDLE")

ACTIVE: Final = (LOADING, REPLAY_READY, READY, DECIDING, RELOADING, IDLE)


class Transition(dict[Phase, T], Generic[T]):
    """What one event makes of each phase. Phases with data are listed by their type."""

    def __init__(self, event: str, table: Mapping[Phase, T], by_type: Mapping[type[Phase], T] | None = None) -> None:
        super().__init__(table)
        self.event, self.by_type = event, by_type or {}

    def __missing__(self, phase: Phase) -> T:
        found = self.by_type.get(type(phase))
        if found is None:
            raise IllegalTransition(f"a run in phase {phase} cannot take the event {self.event}")
        return found


LOADED: Final = Transition("LOADED", {LOADING: REPLAY_READY})
"""Its code can be given the history."""

FACTS: Final = Transition(
    "FACTS",
    {
        LOADING: REPLAY_READY,
        REPLAY_READY: REPLAY_READY,
        READY: READY,
        DECIDING: DECIDING,
        RELOADING: RELOADING,
        IDLE: READY,
    },
)
"""Events that its code has not seen became durable."""

ACTIVATED: Final = Transition("ACTIVATED", {REPLAY_READY: DECIDING, READY: DECIDING})
"""Its code was given all that it has not seen."""

DECIDED: Final = Transition(
    "DECIDED",
    {
        LOADING: LOADING,
        REPLAY_READY: REPLAY_READY,
        READY: READY,
        DECIDING: IDLE,
        RELOADING: RELOADING,
        IDLE: IDLE,
    },
)
"""Its code answered. FACTS follows if more became durable in the meantime."""

CODE_LOST: Final = Transition("CODE_LOST", dict.fromkeys(ACTIVE, RELOADING))
"""No worker holds its code any more."""

RELOADED: Final = Transition("RELOADED", {RELOADING: REPLAY_READY})
"""Its history was read again."""

ENDED: Final = Transition("ENDED", dict.fromkeys(ACTIVE, Closing))
"""It succeeded, failed, was cancelled or continued in a successor."""

RELEASED: Final = Transition("RELEASED", dict.fromkeys(ACTIVE, Leaving))
"""It sleeps in the database until its next timer or message, or is stuck there."""

SET_ASIDE: Final = Transition("SET_ASIDE", dict.fromkeys(ACTIVE, Leaving), {Closing: Leaving, Leaving: Leaving})
"""The database refuses a record of it, or this engine failed: it is stuck with the reason."""

TABLES: Final = (LOADED, FACTS, ACTIVATED, DECIDED, CODE_LOST, RELOADED, ENDED, RELEASED, SET_ASIDE)
"""All events, for tests and for the picture in the documentation."""
