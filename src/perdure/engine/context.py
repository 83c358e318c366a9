"""The parts that all components of one engine share."""

from __future__ import annotations

from collections.abc import Callable

from perdure.engine.background import Background
from perdure.engine.clock import DatabaseClock
from perdure.engine.commits.write_queue import WriteQueue
from perdure.engine.counters import Counters
from perdure.engine.events import EngineEvents
from perdure.engine.name_counts import NameCounts
from perdure.engine.ports import Store, WorkerPort
from perdure.engine.run_ids import RunIds
from perdure.engine.session import EngineSession
from perdure.engine.settings import EngineSettings


class EngineContext:
    def __init__(self, store: Store, worker: WorkerPort, settings: EngineSettings) -> None:
        self.store, self.worker, self.settings = store, worker, settings
        self.clock = DatabaseClock()
        self.now_us: Callable[[], int] = self.clock.now_us
        self.new_run_id: Callable[[], bytes] = RunIds(settings.shard, self.now_us).new
        self.counters, self.session, self.events = Counters(), EngineSession(), EngineEvents()
        self.names = NameCounts()
        self.queue = WriteQueue(settings.commit, self.now_us)
        self.background = Background()
