"""The runs that this engine owns and holds in memory, and which more it may take on."""

from __future__ import annotations

from perdure.core.work import is_flow
from perdure.engine.ports import Named
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.run import ActiveRun


class OwnedRuns(dict[bytes, ActiveRun]):
    """By id. `reserved` places are kept for runs whose start is on its way to the database."""

    def __init__(self, flows: Flows, runs_max: int) -> None:
        super().__init__()
        self._flows, self.runs_max = flows, runs_max
        self.reserved = 0
        self.draining = False
        """No runs are claimed or begun here."""
        self.workflows: dict[Named, str] = {}
        """(namespace, name) -> version, as workers here serve them."""

    @property
    def has_room(self) -> bool:
        return len(self) + self.reserved < self.runs_max

    def may_own(self, ns: int, workflow: str, version: str) -> bool:
        """As `reserve`, for a start that a caller asks for."""
        return not self.draining and self.reserve(ns, workflow, version)

    def reserve(self, ns: int, workflow: str, version: str) -> bool:
        """Keep a place for a run of ours that is being created; `RunLoop.begin` or a refusal gives it back."""
        known = self._flows.has(ns, workflow, version) if is_flow(version) else (ns, workflow) in self.workflows
        if not known or not self.has_room:
            return False
        self.reserved += 1
        return True

    def unreserve(self, places: int) -> None:
        self.reserved = max(0, self.reserved - places)

    def serves(self, run: ActiveRun) -> bool:
        """Whether its code, or its flow, can be decided here."""
        return run.decider is not None or (run.ns, run.workflow) in self.workflows

    def forget_all(self) -> None:
        self.clear()
        self.reserved = 0
