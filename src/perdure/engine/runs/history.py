"""Reading the history of a claimed run, in slices, before the loop takes it up."""

from __future__ import annotations

import asyncio

from perdure.core import events as ev
from perdure.core.errors import Failure, PayloadKeyMissing
from perdure.core.limits import UNWIND_GRACE_US
from perdure.core.run_retry import effective
from perdure.core.work import is_flow
from perdure.engine.ports import HistoryRow
from perdure.engine.runs.delivery import is_handed_on, message_of
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.turns import SLICE_S, within
from perdure.wire.codec import decode_row


class History:
    """What was read of a claimed run."""

    __slots__ = ("error", "history", "missing", "seen")

    def __init__(self) -> None:
        self.history: list[ev.Recorded] = []
        self.seen: list[ev.Recorded] = []
        """As code and state see it: without what a retry took back."""
        self.missing: Failure | None = None
        """Why its flow's definition, or the key of its history, is not available."""
        self.error: Exception | None = None


async def read_history(flows: Flows, run: ActiveRun, rows: list[HistoryRow]) -> History:
    """The whole history, decoded and folded. The loop does not know the run yet: `RunLoop.load` takes it in."""
    read = History()
    try:
        run.seq, run.head, run.head_us = rows[-1].last, rows[-1].hash, rows[-1].at_us
        read.missing = find_decider(flows, run)
        is_up = within(SLICE_S)
        for row in rows:
            read.history.extend(decode_row(row.seq, row.at_us, row.body))
            if is_up():
                await asyncio.sleep(0)
                is_up = within(SLICE_S)
        read.seen = effective(read.history)
        for n, record in enumerate(read.seen):
            run.state.apply(record.event)
            if record.seq == 1:
                bound(run, record.at_us)
            if is_handed_on(record.event) and (message := message_of(record.event)) is not None:
                run.unseen.append(message)
            if not n & 63 and is_up():
                await asyncio.sleep(0)
                is_up = within(SLICE_S)
    except PayloadKeyMissing as e:
        read.missing = e.to_failure()
    except Exception as e:
        read.error = e
    return read


def find_decider(flows: Flows, run: ActiveRun) -> Failure | None:
    """Declarative runs are decided here. A failure means that their definition is not available, and the run is stuck."""
    if is_flow(run.version):
        found = flows.decider(run.ns, run.workflow, run.version, run.id)
        if isinstance(found, Failure):
            return found
        run.decider = found
    return None


def bound(run: ActiveRun, started_us: int) -> None:
    """Apply the time limit of a flow, unless the start of the run has its own."""
    if run.decider is not None and run.decider.flow.timeout_us and not run.state.deadline_us:
        grace_us = UNWIND_GRACE_US if run.state.timed_out else 0
        run.state.deadline_us = max(started_us, run.state.start_at_us) + run.decider.flow.timeout_us + grace_us
