"""The invariants by number, and what was found about each.

Law: a check without material reports that (`examined` is 0) instead of passing in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

INVARIANTS: Final[dict[int, str]] = {
    1: "every acknowledged start exists exactly once",
    2: "one run per key; a key names a run that was started under it, with the same input",
    3: "event numbers per run are gapless from 1, and each row's hash follows from the row before",
    4: "state rebuilt from events equals stored state, column by column",
    5: "terminal is absorbing: one terminal event, and it is the last; only a retry may follow a failure",
    6: "every transition is an edge of the declared table",
    7: "at most one recorded result per task",
    8: "every recorded success has a ledger effect of the same attempt",
    9: "no committed write carries a stale epoch",
    10: "executions <= max_attempts + lost workers; at-most-once tasks at most once",
    11: "no task starts before its dependencies are satisfied",
    12: "a fan-out of N has exactly N ends 0..N-1 and one join",
    13: "no more in flight than a limit allows, and every slot has its holder",
    14: "timers never early by the database clock, fired once; no deadline is overdue",
    15: "one run per schedule and nominal time",
    16: "an acknowledged signal is consumed once or pending, in the order of its sender",
    17: "at rest the inbox is empty and no row is an orphan",
    18: "no task begins after its cancel or the end of its run",
    19: "retries are spaced by their policy",
    20: "every item of a batched start is kept until its run is there",
    21: "at rest every run that is not waiting for input has ended",
    22: "no row of a run belongs to another namespace",
    23: "the audit log is complete, unchanged and in order",
    24: "stored content that a history refers to is there, and has its SHA-256",
    25: "attempts of a task are on record from 1 without gaps; the last is the task's row",
    26: "a message waits for an active run only, and is set aside only with the end of its run",
    27: "an answer in a history is to a question that the run has asked",
    28: "a key and a chain name their last run; a key has one active run at most",
}
LEDGER: Final = "--ledger"
STARTS: Final = "--starts"
AT_REST: Final = "--at-rest"
NEEDS: Final[dict[int, str]] = {1: STARTS, 8: LEDGER, 10: LEDGER, 11: LEDGER, 17: AT_REST, 19: LEDGER, 21: AT_REST}
"""Invariants that cannot be checked without more than the database."""
EXAMPLES_MAX: Final = 5


class Example(msgspec.Struct, frozen=True):
    run: str
    what: str


class Tally:
    """One invariant: how much was looked at, how often it did not hold, and the first few cases."""

    __slots__ = ("examined", "examples", "name", "needs", "number", "unchecked", "violations")

    def __init__(self, number: int, needs: str = "") -> None:
        self.number, self.name = number, INVARIANTS[number]
        self.needs = needs
        """The option without which it was not checked; empty: it was."""
        self.examined = self.violations = 0
        self.unchecked = 0
        """Objects that this process cannot look at: content of object stores that it was not given."""
        self.examples: list[Example] = []


class Findings:
    """Every invariant has its tally. Those that are not among `numbers` are listed, and not checked."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._checked = frozenset(numbers)
        self.tallies = {n: Tally(n, "" if n in self._checked else NEEDS.get(n, "")) for n in INVARIANTS}

    def examine(self, number: int, count: int = 1) -> None:
        if number in self._checked:
            self.tallies[number].examined += count

    def pass_over(self, number: int) -> None:
        """One object could not be looked at."""
        self.tallies[number].unchecked += 1

    def violate(self, number: int, run: str, what: str) -> None:
        if number not in self._checked:
            return
        tally = self.tallies[number]
        tally.violations += 1
        if len(tally.examples) < EXAMPLES_MAX:
            tally.examples.append(Example(run, what))

    def __contains__(self, number: int) -> bool:
        return number in self._checked

    @property
    def clean(self) -> bool:
        return not any(t.violations for t in self.tallies.values())
