"""What an engine counts about itself. Plain numbers; /metrics and the bench read them."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    commits: int = 0
    commit_rows: int = 0
    commit_us: int = 0
    commits_doubtful: int = 0
    fenced: int = 0
    poisoned: int = 0
    runs_started: int = 0
    runs_claimed: int = 0
    runs_ended: int = 0
    runs_evicted: int = 0
    runs_stuck: int = 0
    activations: int = 0
    tasks_dispatched: int = 0
    tasks_ended: int = 0
    tasks_retried: int = 0
    tasks_lost: int = 0
    tasks_spilled: int = 0
    tasks_claimed: int = 0
    late_reports: int = 0
    sessions_reaped: int = 0
    polls: int = 0
    notifications: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
