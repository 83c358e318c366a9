"""What `perdure check` reports."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal[
    "diverges",
    "input",
    "fails",
    "wait_removed",
    "workflow_removed",
    "task_removed",
    "not_deterministic",
]
KINDS: Final[dict[str, str]] = {
    "diverges": "The code or flow asks for something else than the history has.",
    "input": "The workflow cannot take the input that runs were started with.",
    "fails": "The code fails where runs wait now.",
    "wait_removed": "Runs wait for a signal or an update that the code does not wait for any more.",
    "workflow_removed": "Runs in flight belong to a workflow that nothing serves after the deploy.",
    "task_removed": "Scheduled tasks belong to a name that nothing serves after the deploy.",
    "not_deterministic": "Workflow code calls something that a replay answers differently.",
}
"""Kind of a finding -> meaning; also the table of docs/how-to/check-a-deploy.md."""


class SourceLine(msgspec.Struct, frozen=True):
    file: str
    line: int


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: Kind
    severity: Literal["break", "warning"] = "break"
    workflow: str
    message: str
    """One sentence."""
    runs: int = 0
    """Runs in flight that have taken the path, or that it is about."""
    path: str = ""
    fingerprint: str = ""
    run: str = ""
    """A run that shows it."""
    expected: str = ""
    """What the history has."""
    got: str = ""
    """What the code asks for."""
    event: int = 0
    """Number of the history's event; 0: none."""
    event_type: str = ""
    event_at_us: int = 0
    place: SourceLine | None = None
    """The line that asks."""
    advice: tuple[str, ...] = ()


class CheckedPath(msgspec.Struct, frozen=True, kw_only=True):
    workflow: str
    fingerprint: str
    path: str
    runs: int
    replayed: int
    ended: bool = False
    breaks: int = 0


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    workflows: tuple[str, ...]
    runs: int
    """Runs in flight that were looked at."""
    paths: list[CheckedPath]
    replayed: int
    pinned: dict[str, dict[str, int]]
    """Runs that keep their version of the code and were not replayed: workflow -> version -> runs."""
    seconds: float
    findings: list[CheckFinding]
    unchecked: list[str]
    """What could not be checked, and why."""

    @property
    def breaks(self) -> list[CheckFinding]:
        return [f for f in self.findings if f.severity == "break"]

    @property
    def result(self) -> Literal["ok", "breaks", "unchecked"]:
        if self.breaks:
            return "breaks"
        return "unchecked" if self.unchecked else "ok"
