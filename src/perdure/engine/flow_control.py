"""One engine's view of flow control: the rules, the options of workflows, and the slots that its own tasks hold.

Nothing is counted here: the claim transaction counts (store/flow_control.py, core/flow_control/admission.py). What is here only says in
which group something waits, and which keys were freed, so that what waits for them is examined at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from perdure.core import events as ev
from perdure.core.durations import FOREVER_US
from perdure.core.errors import LimitReached
from perdure.core.flow_control.admission import Key, LimitUse
from perdure.core.flow_control.groups import FlowControlGroup, FlowControlRules, run_group, task_group
from perdure.core.flow_control.options import FlowControlSpec
from perdure.core.ids import text
from perdure.engine.ports import Store
from perdure.engine.shared_reads import SharedReads

CONTROL_TRUST_US: Final = 5_000_000
"""How long the flow-control options of a workflow are cached."""
CONTROLS_MAX: Final = 10_000
"""Versions of workflows whose options are cached."""

Version = tuple[int, str, str]
"""(namespace, workflow, version)"""

_control = msgspec.json.Decoder(FlowControlSpec)


class FlowControl:
    def __init__(self, store: Store, now_us: Callable[[], int]) -> None:
        self._store, self._now_us = store, now_us
        self.rules = FlowControlRules()
        self.rules_us: int | None = None
        """Time of the last change that these rules include."""
        self._controls: dict[Version, tuple[FlowControlSpec | None, int]] = {}
        self._shared_reads = SharedReads()
        self.holding: dict[bytes, tuple[Key, ...]] = {}
        """Tasks in flight here that hold slots -> their keys."""
        self.freed: set[Key] = set()
        """Keys with slots freed since the last poll of claims."""

    def limits(self, ns: int, event: ev.TasksScheduled, workflow: str) -> bool:
        """Whether flow control queues these tasks."""
        return event.options.control is not None or bool(self.rules.for_task(ns, event.queue, event.name, workflow))

    def of_task(self, ns: int, workflow: str, event: ev.TasksScheduled, seq: int) -> FlowControlGroup | None:
        if not self.limits(ns, event, workflow):
            return None
        data = event.inputs[seq - event.first]
        return task_group(event.options.control, ns, event.queue, event.name, workflow, data)

    def launched(self, task_id: bytes, keys: tuple[Key, ...]) -> None:
        if keys:
            self.holding[task_id] = keys

    def released(self, task_id: bytes) -> None:
        """Its attempt is over, durably, and its slots are free."""
        keys = self.holding.pop(task_id, None)
        if keys:
            self.freed.update(keys)

    def take_freed(self) -> set[Key]:
        freed, self.freed = self.freed, set()
        return freed

    def knows(self, version: Version) -> bool:
        found = self._controls.get(version)
        return found is not None and self._now_us() - found[1] < CONTROL_TRUST_US

    def learn(self, version: Version, control: bytes | None, *, owned_here: bool = False) -> None:
        """Options declared by workers of this engine (`owned_here`) are not read again."""
        if len(self._controls) >= CONTROLS_MAX:
            self._controls.clear()
        read_us = FOREVER_US if owned_here else self._now_us()
        self._controls[version] = (_control.decode(control) if control else None, read_us)

    async def find(self, ns: int, versions: Iterable[tuple[str, str]]) -> None:
        """Read what is not known."""
        wanted = tuple(v for v in dict.fromkeys(versions) if not self.knows((ns, *v)))
        if wanted:
            await self._shared_reads.ask((ns, wanted), lambda: self._read(ns, wanted))

    async def _read(self, ns: int, wanted: Sequence[tuple[str, str]]) -> None:
        found = await self._store.controls(ns, wanted)
        for workflow, version in wanted:
            self.learn((ns, workflow, version), found.get((workflow, version)))

    def of_run(self, version: Version, data: bytes) -> FlowControlGroup | None:
        """The group that a new run waits in; None: it may begin. The options of its version must be cached."""
        ns, workflow, _ = version
        found = self._controls.get(version)
        control = found[0] if found is not None else None
        if control is None and not self.rules.for_run(ns, workflow):
            return None
        return run_group(control, ns, workflow, data)

    async def check_skip(self, group: FlowControlGroup) -> None:
        """LimitReached where a reached limit refuses new starts."""
        for need in group.needs.limits:
            if need.policy == "skip":
                held: LimitUse = await self._store.held_by(group.ns, need.key)
                if held.count >= need.max:
                    by = ", ".join(text(h) for h in held.holders)
                    raise LimitReached(
                        f"{group.workflow} was not started: its limit {need.key} of {need.max} at a time is held by {by}; start it when that has ended"
                    )

    async def refresh(self, changed_us: int | None) -> bool:
        """Read the rules again if they changed; True if they had."""
        if changed_us == self.rules_us:
            return False
        self.rules, self.rules_us = await self._store.rules(), changed_us
        return True

    async def read_rules(self) -> None:
        self.rules, self.rules_us = await self._store.rules(), None

    def forget_all(self) -> None:
        """The session is gone, and with it what its tasks held."""
        self.holding.clear()
        self.freed.clear()
