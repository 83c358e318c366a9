"""An engine's parts without a database: events in, effects out.

The clock stands at NOW_US until a test sets it, new runs have one id, and what is to be written stays in the write queue.
"""

from __future__ import annotations

from typing import Any

from perdure.core import ids
from perdure.core.work import Activation, Assignment, Decided, QueryCall, ServedCode
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.payloads import Payloads
from perdure.engine.ports import CodeKey, Kind
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.loop import RunLoop, RunParts
from perdure.engine.runs.run import ActiveRun
from perdure.engine.settings import EngineSettings
from perdure.engine.tasks.attempts import Attempts
from perdure.engine.tasks.dispatch import Dispatcher
from tests.fakes.engine_stores import NoPayloads

RUN = ids.run_id(1_000, 0, 7)
CHILD = ids.run_id(2_000, 0, 9)
NOW_US = 5


def serving(*versions: str) -> dict[CodeKey, ServedCode]:
    """Workers that serve the workflow `w`."""
    return {(1, "w", version): ServedCode(version=version) for version in versions}


class FakeWorker:
    """Records what it is given and answers nothing by itself."""

    outlives_engine = False

    def __init__(self, slots: int = 10, served: tuple[Kind, ...] = ((1, "q", "t"),)) -> None:
        self.ns, self.slots, self.served = 1, slots, list(served)
        self.code = serving("v")
        self.task_options: dict[str, bytes | None] = {}
        self.assigned: list[Assignment] = []
        self.cancelled: list[tuple[bytes, int, int]] = []
        self.activated: list[Activation] = []
        self.answers: list[Decided] = []
        self.forgotten: list[bytes] = []

    @property
    def slots_free(self) -> int:
        return self.slots - len(self.assigned) + len(self.cancelled)

    def free_for(self, kind: Kind) -> int:
        return self.slots_free

    def name_of(self, run_id: bytes, seq: int) -> str:
        return "fake"

    def open(self, *_: Any) -> None: ...
    def assign(self, batch: list[Assignment]) -> None:
        self.assigned += batch

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        self.cancelled.append((run_id, seq, attempt))

    def activate(self, batch: list[Activation]) -> list[Decided]:
        self.activated += batch
        answers, self.answers = self.answers, []
        return answers

    def query(self, code: CodeKey, call: QueryCall) -> None: ...

    def forget(self, run_id: bytes) -> None:
        self.forgotten.append(run_id)

    def forget_all(self) -> None: ...
    async def close(self) -> None: ...


class EngineParts:
    """The parts of an engine that hold its memory."""

    def __init__(self, store: Any = None, worker: Any = None, settings: EngineSettings | None = None) -> None:
        self.now = NOW_US
        self.worker = worker or FakeWorker()
        self.context = EngineContext(store, self.worker, settings or EngineSettings(runs_max=10))
        self.context.now_us = self.context.queue.now_us = lambda: self.now
        self.context.new_run_id = lambda: CHILD
        self.events, self.queue, self.counters = self.context.events, self.context.queue, self.context.counters
        self.flow_control = FlowControl(store, self.context.now_us)
        self.flows = Flows(store, self.context.now_us)
        self.attempts = Attempts(self.context, self.flow_control)
        self.dispatcher = Dispatcher(self.context, self.flow_control, self.attempts)
        payloads = Payloads(NoPayloads(), self.context.settings)  # type: ignore[arg-type]
        self.parts = RunParts(self.context, self.dispatcher, self.flows, self.flow_control, payloads)
        self.runs, self.delivery, self.exits = self.parts.runs, self.parts.delivery, self.parts.exits
        self.timers, self.commands = self.parts.timers, self.parts.commands
        self.loop = RunLoop(self.parts)
        self.context.session.begin(7)

    def run(self, run_id: bytes = RUN) -> ActiveRun:
        """A run of workflow `w` in memory."""
        run = ActiveRun(run_id, 1, "w", "v", 1)
        self.runs[run.id] = run
        return run

    def published(self, topic: str) -> list[tuple[Any, ...]]:
        """What is published to a topic from now on."""
        found: list[tuple[Any, ...]] = []
        getattr(self.events, topic).subscribe(lambda *args: found.append(args))
        return found
