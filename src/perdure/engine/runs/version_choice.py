"""Versions of new runs, and of runs that are loaded. core/versions.py has the rules for new ones.

A run that is pinned is executed by its version and no other. One that is not moves when its code is loaded: to the version that a new run
under its id would get, if a worker here serves it; else it stays with its own; else it takes what is served here.
"""

from __future__ import annotations

from perdure.core.versions import Chosen
from perdure.core.work import is_flow
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun


class VersionChoices:
    def __init__(self, flows: Flows, runs: OwnedRuns) -> None:
        self._flows, self._runs = flows, runs

    def knows(self, ns: int, workflow: str) -> bool:
        """Whether what is set for the workflow is known without a look at the database."""
        return self._flows.knows(ns, workflow)

    async def find_all(self, ns: int, workflows: list[str]) -> None:
        await self._flows.find(ns, workflows)

    async def find(self, ns: int, workflow: str, named: str, *, demanded: bool = False) -> None:
        """Read what `of_start` needs. NotRegistered where no version is named and none is known."""
        if demanded:
            await self._flows.find_input((ns, workflow, named))
        elif named:
            await self._flows.find_current(ns, workflow)
        else:
            await self._flows.pin(ns, workflow)

    def candidates(self, ns: int, workflow: str, named: str) -> list[str]:
        """The versions that `of_start` may choose."""
        choice = self._flows.choice(ns, workflow)
        known = (named, choice.current, choice.ramp) if choice is not None else (named,)
        return [version for version in dict.fromkeys(known) if version]

    def of_start(self, ns: int, workflow: str, named: str, run_id: bytes, *, demanded: bool = False) -> Chosen | None:
        """The version of a new run; None: there is no such workflow. `named` is the version that the starting code knows, or that the
        start demands."""
        if demanded:
            return Chosen(named, self._flows.is_pinned((ns, workflow, named)))
        choice = self._flows.choice(ns, workflow)
        if choice is None or (named and is_flow(named) != is_flow(choice.current)):
            return Chosen(named, self._pins(ns, workflow, named)) if named else None
        if not choice.by_hand and named and (code := self._runs.code.get((ns, workflow, named))) is not None:
            return Chosen(named, code.pinned)
        return choice.of(run_id)

    def of_successor(self, run: ActiveRun, run_id: bytes) -> Chosen:
        """A run that continues as new moves to the version of new runs. A flow stays with its own."""
        choice = self._flows.choice(run.ns, run.workflow)
        chosen = choice.of(run_id) if choice is not None and run.decider is None else None
        return chosen if chosen is not None and not is_flow(chosen.version) else Chosen(run.version, bool(run.pin))

    def of_loaded(self, run: ActiveRun) -> str:
        """The version to load a run of code with. That of a pinned run may be served by no worker here."""
        if run.pin:
            return run.pin
        served = self._runs.versions.get((run.ns, run.workflow), ())
        if len(served) <= 1:
            return served[0] if served else run.version
        choice = self._flows.choice(run.ns, run.workflow)
        wanted = choice.of(run.id).version if choice is not None else run.version
        return next((version for version in (wanted, run.version) if version in served), served[-1])

    def pins(self, run: ActiveRun, version: str) -> bool:
        """Whether a run that begins with this version is pinned to it."""
        return self._pins(run.ns, run.workflow, version)

    def _pins(self, ns: int, workflow: str, version: str) -> bool:
        code = self._runs.code.get((ns, workflow, version))
        return code is not None and code.pinned

    def needs_choice(self, ns: int, workflow: str) -> bool:
        """Whether `of_loaded` depends on what is set for the workflow, and that is not known."""
        return len(self._runs.versions.get((ns, workflow), ())) > 1 and not self._flows.knows(ns, workflow)
