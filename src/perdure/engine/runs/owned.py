"""The runs that this engine owns and holds in memory, and which more it may take on."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.core.work import ServedCode, is_flow
from perdure.engine.ports import CodeKey, Named, Pin
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
        self.code: Mapping[CodeKey, ServedCode] = {}
        """What workers here serve."""
        self.versions: dict[Named, tuple[str, ...]] = {}
        """The versions of each workflow among them, in the order in which they came."""
        self.claimable: list[Pin] = []
        """What runs of code may be pinned to that are claimed here."""

    @property
    def has_room(self) -> bool:
        return len(self) + self.reserved < self.runs_max

    def serve(self, code: Mapping[CodeKey, ServedCode]) -> None:
        """This is all that workers here serve."""
        self.code, self.versions = code, {}
        for ns, workflow, version in code:
            self.versions[ns, workflow] = (*self.versions.get((ns, workflow), ()), version)
        self.claimable = [*((ns, workflow, "") for ns, workflow in self.versions), *code]

    def may_own(self, ns: int, workflow: str, version: str, pinned: bool) -> bool:
        """As `reserve`, for a start that a caller asks for."""
        return not self.draining and self.reserve(ns, workflow, version, pinned)

    def reserve(self, ns: int, workflow: str, version: str, pinned: bool) -> bool:
        """Keep a place for a run of ours that is being created; `RunLoop.begin` or a refusal gives it back."""
        if is_flow(version):
            known = self._flows.has(ns, workflow, version)
        else:
            known = (ns, workflow, version) in self.code if pinned else (ns, workflow) in self.versions
        if not known or not self.has_room:
            return False
        self.reserved += 1
        return True

    def unreserve(self, places: int) -> None:
        self.reserved = max(0, self.reserved - places)

    def serves(self, run: ActiveRun) -> bool:
        """Whether its code, or its flow, can be decided here."""
        if run.decider is not None:
            return True
        return (run.ns, run.workflow, run.pin) in self.code if run.pin else (run.ns, run.workflow) in self.versions

    def forget_all(self) -> None:
        self.clear()
        self.reserved = 0
