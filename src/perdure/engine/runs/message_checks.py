"""Whether a message can be read by the code of its run: what every door asks before a message is written.

    run --> workflow and version --> what was published for it --> known name? --> fits a schema?

Laws:

1. A message that is known to fit costs look-ups in memory. Before one is refused, all that was cached is read again: a run may have gone on
   to another version, or continued as a new run.
2. Code that is not pinned may continue a run with the current version of its workflow, so a message may be meant for either.
3. What cannot be judged is accepted: a run that has ended (the next step says so), a version that published nothing, stored values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from perdure.core.errors import InvalidInput, PayloadMismatch, PerdureError, UpdateRejected
from perdure.core.ids import text
from perdure.core.limits import SUCCESSORS_MAX
from perdure.core.payloads import MARK
from perdure.core.published_messages import MessageKind
from perdure.core.work import RunView, is_flow
from perdure.engine.ports import Store
from perdure.engine.runs.flow_definitions import Definition, Flows
from perdure.engine.runs.owned import OwnedRuns

RUNS_KEPT: Final = 10_000
"""Runs of other engines whose version is cached."""
RUN_TRUST_US: Final = 10_000_000
"""How long it is."""


class _Elsewhere(msgspec.Struct, frozen=True):
    """A run that this engine does not have in memory, as it was read."""

    definition: Definition
    read_us: int


class MessageDoor:
    def __init__(
        self, store: Store, runs: OwnedRuns, flows: Flows, now_us: Callable[[], int], value_bytes_max: int
    ) -> None:
        self._store, self._runs, self._flows, self._now_us = store, runs, flows, now_us
        self._value_bytes_max = value_bytes_max
        """Longer values are stored apart, and not checked."""
        self._elsewhere: dict[tuple[int, bytes], _Elsewhere] = {}

    async def check(self, ns: int, run_id: bytes, kind: MessageKind, name: str, value: bytes | None) -> None:
        """InvalidInput for a message that the run's code never reads, PayloadMismatch for a value that it cannot read. Without a value only
        the name is checked."""
        definition = None
        run, known = self._runs.get(run_id), self._elsewhere.get((ns, run_id))
        if run is not None and run.ns == ns:
            definition = (ns, run.workflow, run.version)
        elif known is not None and self._now_us() - known.read_us < RUN_TRUST_US:
            definition = known.definition
        if definition is not None:
            if not self._flows.knows_messages(definition):
                await self._flows.find_messages(definition)
            if self._judged(definition, kind, name, value, run_id) is None:
                return
        view = await self._last(ns, run_id)
        if view is None:
            return
        again = definition is not None
        definition = self._remember(ns, run_id, view)
        if again:
            await self._flows.find_messages(definition)
        error = await self.problem(definition, kind, name, value, run_id)
        if error is not None:
            raise error

    async def problem(
        self, definition: Definition, kind: MessageKind, name: str, value: bytes | None, run_id: bytes | None = None
    ) -> PerdureError | None:
        """Why neither this version nor the one that may continue its runs reads the message; None: one of them does, or may."""
        error = await self._problem(definition, kind, name, value, run_id)
        ns, workflow, version = definition
        if error is None or is_flow(version) or self._flows.is_pinned(definition):
            return error
        await self._flows.find(ns, [workflow])
        choice = self._flows.choice(ns, workflow)
        if choice is None or choice.current == version or is_flow(choice.current):
            return error
        current = (ns, workflow, choice.current)
        return None if await self._problem(current, kind, name, value, run_id) is None else error

    async def _problem(
        self, definition: Definition, kind: MessageKind, name: str, value: bytes | None, run_id: bytes | None
    ) -> PerdureError | None:
        if not self._flows.knows_messages(definition):
            await self._flows.find_messages(definition)
        return self._judged(definition, kind, name, value, run_id)

    def _judged(
        self, definition: Definition, kind: MessageKind, name: str, value: bytes | None, run_id: bytes | None
    ) -> PerdureError | None:
        checks = self._flows.messages(definition)
        if checks is None or (kind == "update" and is_flow(definition[2])):
            return None  # a flow takes no updates, and says so itself
        refusal = UpdateRejected if kind == "update" else None
        if not checks.knows(kind, name):
            whose = f"run {text(run_id)}" if run_id is not None else f"workflow {definition[1]}"
            return (refusal or InvalidInput)(f"{whose} has no {kind} {name!r}. {checks.unknown(kind, name)}")
        if value is None or value.startswith(MARK) or len(value) > self._value_bytes_max:
            return None
        if wrong := checks.misfit(kind, name, value):
            return (refusal or PayloadMismatch)(
                f"{kind} {name!r} does not fit its type: {wrong}. Send a value that fits."
            )
        return None

    async def _last(self, ns: int, run_id: bytes) -> RunView | None:
        """The run, or the one that it continued as. None when that has ended or is not there."""
        for _ in range(SUCCESSORS_MAX):
            view = await self._store.describe(run_id, ns)
            if view is None or view.successor is None:
                return view if view is not None and view.finished_us is None else None
            run_id = view.successor
        return None

    def _remember(self, ns: int, run_id: bytes, view: RunView) -> Definition:
        if len(self._elsewhere) >= RUNS_KEPT:
            self._elsewhere.clear()
        definition = (ns, view.workflow, view.version)
        self._elsewhere[ns, run_id] = _Elsewhere(definition, self._now_us())
        return definition
