"""Declarative workflows as this engine knows them: compiled definitions, and which version of a name is current.

A definition never changes (its version is the hash of its document), so it is compiled once and kept. The current version of a name
does change: what is known of it is trusted for a moment, so a deployment elsewhere is seen a second later at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from perdure.core.errors import Failure, NotRegistered, PerdureError
from perdure.core.flow.compile import compile_value
from perdure.core.flow.decider import Decider
from perdure.core.flow.model import Flow, is_flow
from perdure.engine.ports import Named, Store

PLANS_MAX: Final = 1_000
"""Compiled definitions kept; the longest unused go first."""
TRUST_US: Final = 1_000_000
"""How long a current version counts after it was read."""
COMPILED_HERE_BYTES: Final = 8 * 1024
"""A larger document is compiled in a thread: it would hold up the event loop."""
NAMES_MAX: Final = 10_000
"""Names whose current version is remembered."""

Definition = tuple[int, str, str]
"""(namespace, workflow, version)"""


class Flows:
    def __init__(self, store: Store, now_us: Callable[[], int]) -> None:
        self._store, self._now_us = store, now_us
        self._plans: OrderedDict[Definition, Flow | Failure] = OrderedDict()
        self._current: dict[Named, tuple[str | None, int]] = {}
        self.fixed: dict[Named, str] = {}
        """Versions that new runs of a name get whichever is current, for tests."""

    # -- definitions ------------------------------------------------------------------------------------------------

    def has(self, ns: int, workflow: str, version: str) -> bool:
        return isinstance(self._plans.get((ns, workflow, version)), Flow)

    def decider(self, ns: int, workflow: str, version: str, run_id: bytes) -> Decider | Failure:
        """A fresh decider, or why there is none. The definition must have been ensured."""
        found = self._plans.get((ns, workflow, version))
        if isinstance(found, Flow):
            self._plans.move_to_end((ns, workflow, version))
            return Decider(found, run_id)
        return found or Failure("flow_unavailable", f"the definition {version} of {workflow} has not been read")

    async def ensure(self, wanted: Iterable[Definition]) -> None:
        """Read and compile definitions that are not here yet."""
        for definition in dict.fromkeys(wanted):
            if isinstance(self._plans.get(definition), Flow):
                self._plans.move_to_end(definition)
            elif is_flow(definition[2]):
                document = await self._store.document(*definition)
                if document is not None and len(document) > COMPILED_HERE_BYTES:
                    self._plans[definition] = await asyncio.to_thread(_compiled, definition, document)
                else:
                    self._plans[definition] = _compiled(definition, document)
                if len(self._plans) > PLANS_MAX:
                    self._plans.popitem(last=False)

    # -- names ------------------------------------------------------------------------------------------------------

    def knows(self, ns: int, name: str) -> bool:
        """Whether `current` can be asked without looking again."""
        if (ns, name) in self.fixed:
            return True
        found = self._current.get((ns, name))
        return found is not None and self._now_us() - found[1] < TRUST_US

    def current(self, ns: int, name: str) -> str | None:
        """The version that a new run of this name gets; None when there is no such workflow."""
        if (fixed := self.fixed.get((ns, name))) is not None:
            return fixed
        found = self._current.get((ns, name))
        return found[0] if found is not None else None

    async def find(self, ns: int, names: Iterable[str]) -> None:
        """Read the current versions of names, and the definitions of those that are flows."""
        wanted = list(dict.fromkeys(names))
        found = await self._store.current_versions(ns, wanted)
        if len(self._current) + len(wanted) > NAMES_MAX:
            self._current.clear()
        now = self._now_us()
        for name in wanted:
            self._current[ns, name] = (found.get(name), now)
        await self.ensure((ns, name, version) for name, version in found.items())

    async def pin(self, ns: int, name: str) -> str:
        """The current version of a workflow. NotRegistered when there is none."""
        if not self.knows(ns, name) or self.current(ns, name) is None:  # it may have been deployed this very moment
            await self.find(ns, [name])
        version = self.current(ns, name)
        if version is None:
            raise NotRegistered(not_registered(name))
        return version

    def forget(self, ns: int, name: str) -> None:
        """The pointer of a name was moved here: look again at once."""
        self._current.pop((ns, name), None)


def not_registered(name: str) -> str:
    return f"no workflow {name!r} in this namespace; deploy a flow of that name, or connect a worker that defines it"


def _compiled(definition: Definition, document: bytes | None) -> Flow | Failure:
    _, workflow, version = definition
    if document is None:
        return Failure("flow_unavailable", f"{workflow} has no definition {version} in the database")
    try:
        return compile_value(msgspec.json.decode(document), name=workflow, stored=True).flow
    except (PerdureError, msgspec.DecodeError) as e:
        return Failure("flow_unavailable", f"the definition {version} of {workflow} cannot be read by this server: {e}")
