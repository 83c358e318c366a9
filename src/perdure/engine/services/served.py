"""What workers of this engine define: served by it, and registered in the database."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from os import urandom  # bound here, before workflow guards wrap it
from time import monotonic

from perdure.core.calls import is_built_in
from perdure.core.errors import Unavailable, VersionTaken
from perdure.core.limits import REGISTER_EVERY_S
from perdure.core.work import ServedCode
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.ports import CodeKey, PublishedVersion
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.services.telemetry import Telemetry, WorkerRow
from perdure.engine.tasks.dispatch import Dispatcher

log = logging.getLogger("perdure.engine")


class ServedDefinitions:
    def __init__(
        self,
        context: EngineContext,
        runs: OwnedRuns,
        dispatcher: Dispatcher,
        flows: Flows,
        flow_control: FlowControl,
        telemetry: Telemetry,
    ) -> None:
        self._store, self._worker, self._now_us = context.store, context.worker, context.now_us
        self._runs, self._dispatcher, self._flows = runs, dispatcher, flows
        self._flow_control, self._telemetry = flow_control, telemetry
        self._registered: dict[CodeKey, ServedCode] = {}
        self._registered_s = monotonic()
        """When all of it was last to be registered."""
        self._declared: dict[str, bytes | None] = {}
        """Options of the worker's tasks, as the database has them."""
        self._worker_id = urandom(16)
        self._since_us = 0

    def serve(self) -> None:
        """Claim and run what workers define by now; `refresh` registers it as well."""
        if not self._runs.draining:
            self._dispatcher.served = frozenset(self._worker.served)
            self._runs.serve(dict(self._worker.code))
            self._flows.serve((ns, name) for ns, _, name in self._worker.served)

    @property
    def is_registered(self) -> bool:
        return all(self._registered.get(key) == code for key, code in self._runs.code.items())

    async def refresh(self) -> None:
        """Workers may define more than they did."""
        self.serve()
        await self._register_served()
        options = self._worker.task_options
        if options != self._declared:
            await self._flows.declare(self._worker.ns, options)
            self._declared = options
        if not self._worker.outlives_engine:
            self._telemetry.set_workers([self._own_worker()])

    async def refresh_quietly(self) -> None:
        """Now and then all is registered anew: which versions are served decides which one is current where none was set by hand."""
        if monotonic() - self._registered_s >= REGISTER_EVERY_S:
            self._registered.clear()
            self._registered_s = monotonic()
        try:
            await self.refresh()
        except Unavailable as e:
            log.warning("workflows of a new worker are not registered yet: %s", e)  # the next heartbeat does it
        except VersionTaken as e:
            log.error("workflows of this process are not registered: %s", e)

    async def register(self, ns: int, code: Mapping[str, ServedCode]) -> None:
        """Before a worker is given runs. VersionTaken, and nothing is registered, where a version of it belongs to other code."""
        fresh = {name: one for name, one in code.items() if not self._knows((ns, name, one.version), one)}
        if not fresh:
            return
        refused = await self._store.register_versions(ns, sorted(fresh.items()))
        if refused:
            raise VersionTaken(_taken(*refused[0]))
        for name, one in fresh.items():
            key = (ns, name, one.version)
            self._flows.learn(key, PublishedVersion(one.parameters or None, one.messages or None, one.pinned))
            self._flow_control.learn(key, one.control or None, owned_here=True)
            self._registered[key] = one
            if (choice := self._flows.choice(ns, name)) is None or choice.current != one.version:
                self._flows.forget(ns, name)

    def _knows(self, key: CodeKey, code: ServedCode) -> bool:
        """Code that was not served for a while is registered anew: which one is current may depend on it."""
        return self._registered.get(key) == code and key in self._runs.code

    async def _register_served(self) -> None:
        by_version: dict[int, list[dict[str, ServedCode]]] = {}
        for (ns, name, _), code in self._runs.code.items():
            layers = by_version.setdefault(ns, [])
            layer = next((one for one in layers if name not in one), None)
            if layer is None:
                layers.append(layer := {})
            layer[name] = code
        for ns, layers in by_version.items():
            for layer in layers:  # one version of each workflow at a time
                await self.register(ns, layer)

    def _own_worker(self) -> WorkerRow:
        """The worker in this process, as users see it."""
        worker, served, now_us = self._worker, self._worker.served, self._now_us()
        self._since_us = self._since_us or now_us
        return WorkerRow(
            id=self._worker_id,
            ns=worker.ns,
            name=f"{socket.gethostname()}:{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            sdk="embedded",
            queues=sorted({queue for _, queue, _ in served}),
            tasks=sorted({name for _, _, name in served if not is_built_in(name)}),
            versions={name: version for _, name, version in sorted(worker.code)},
            build_id=next((code.build_id for code in worker.code.values()), ""),
            slots=worker.slots,
            slots_used=worker.slots - worker.slots_free,
            runs_held=len(self._runs),
            draining=self._runs.draining,
            connected_us=self._since_us,
            seen_us=now_us,
            load=self._dispatcher.worker_load(f"{socket.gethostname()}:{os.getpid()}"),
        )


def _taken(workflow: str, version: str) -> str:
    return (
        f"the version {version!r} of the workflow {workflow!r} is registered with other code: a label stands for one state of the code. "
        "Give this code a label of its own, @workflow(version=...), or none: then its hash is its version"
    )
