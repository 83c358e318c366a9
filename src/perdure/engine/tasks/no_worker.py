"""The worker of an engine that executes nothing: it starts runs, sends messages and waits for results."""

from __future__ import annotations

from typing import Final

from perdure.core.errors import Failure
from perdure.core.work import Activation, Assignment, Decided, QueryCall, ServedCode, Upstream
from perdure.engine.ports import CodeKey, Kind

NO_WORKER: Final = Failure("no_worker", "no worker here has the code of this workflow")


class NoWorker:
    ns = 0
    slots = slots_free = 0
    outlives_engine = True

    def __init__(self) -> None:
        self.code: dict[CodeKey, ServedCode] = {}
        self.task_options: dict[str, bytes | None] = {}
        self.served: list[Kind] = []

    def free_for(self, kind: Kind) -> int:
        return 0

    def name_of(self, run_id: bytes, seq: int) -> str:
        return ""

    def open(self, upstream: Upstream) -> None: ...
    def assign(self, batch: list[Assignment]) -> None:
        raise AssertionError("an engine without a worker assigns no tasks")

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None: ...
    def activate(self, batch: list[Activation]) -> list[Decided]:
        """Code that no worker here has: the run is released, and another engine takes it up."""
        return [Decided(a.run_id, [], NO_WORKER) for a in batch]

    def query(self, code: CodeKey, call: QueryCall) -> None:
        """No worker here has any code."""

    def forget(self, run_id: bytes) -> None: ...
    def forget_all(self) -> None: ...
    async def close(self) -> None: ...
