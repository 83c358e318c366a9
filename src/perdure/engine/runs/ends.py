"""Events and counters of an ended run."""

from __future__ import annotations

from perdure.core import ids
from perdure.core.lifecycle import RunStatus
from perdure.core.work import Outcome
from perdure.engine.commits.rows import RUN_WORDS
from perdure.engine.counters import Counters
from perdure.engine.events import RunEnd
from perdure.engine.name_counts import NameCounts
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import Closing


def run_end(run: ActiveRun) -> RunEnd:
    phase = run.phase
    assert isinstance(phase, Closing)
    outcome = Outcome(phase.status, phase.value, phase.failure)
    return RunEnd(run.id, run.ns, run.workflow, run.version, run.seq, run.state.trace, outcome, phase.successor)


def count_end(counters: Counters, names: NameCounts, end: RunEnd, now_us: int) -> None:
    counters.runs_ended += 1
    status = end.outcome.status
    took_us = now_us - ids.unix_ms_of(end.run_id) * 1000
    names.workflows.of((end.ns, end.workflow)).ended(RUN_WORDS[status], took_us)
    if status is not RunStatus.SUCCESS:
        counters.runs_failed += status is RunStatus.FAILED
        counters.runs_cancelled += status is RunStatus.CANCELLED
