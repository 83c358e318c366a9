"""What workers of this engine define: served by it, and registered in the database."""

from __future__ import annotations

import logging
import os
import socket
from os import urandom  # bound here, before workflow guards wrap it

from perdure.core.calls import is_built_in
from perdure.core.errors import Unavailable
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.ports import Named
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
        self._registered: dict[Named, str] = {}
        self._declared: dict[str, bytes | None] = {}
        """Options of the worker's tasks, as the database has them."""
        self._worker_id = urandom(16)
        self._since_us = 0

    def serve(self) -> None:
        """Claim and run what workers define by now; `refresh` registers it as well."""
        if not self._runs.draining:
            self._dispatcher.served = frozenset(self._worker.served)
            self._runs.workflows = dict(self._worker.workflows)
            self._flows.serve((ns, name) for ns, _, name in self._worker.served)

    @property
    def is_registered(self) -> bool:
        return all(self._registered.get(n) == v for n, v in self._runs.workflows.items())

    async def refresh(self) -> None:
        """Workers may define more than they did."""
        self.serve()
        await self._register_versions()
        options = self._worker.task_options
        if options != self._declared:
            await self._flows.declare(self._worker.ns, options)
            self._declared = options
        if not self._worker.outlives_engine:
            self._telemetry.set_workers([self._own_worker()])

    async def refresh_quietly(self) -> None:
        try:
            await self.refresh()
        except Unavailable as e:
            log.warning("workflows of a new worker are not registered yet: %s", e)  # the next heartbeat does it

    async def _register_versions(self) -> None:
        fresh = {n: v for n, v in self._runs.workflows.items() if self._registered.get(n) != v}
        for ns in {ns for ns, _ in fresh}:
            versions = {name: v for (of, name), v in fresh.items() if of == ns}
            controls = {name: c for (of, name), c in self._worker.controls.items() if of == ns}
            parameters = {name: taken for (of, name), taken in self._worker.parameters.items() if of == ns}
            await self._store.register_versions(ns, versions, controls, parameters)
            for name, version in versions.items():
                self._flows.learn((ns, name, version), parameters.get(name))
                self._flow_control.learn((ns, name, version), controls.get(name), owned_here=True)
        self._registered.update(fresh)

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
            workflows=sorted(name for _, name in worker.workflows),
            slots=worker.slots,
            slots_used=worker.slots - worker.slots_free,
            runs_held=len(self._runs),
            draining=self._runs.draining,
            connected_us=self._since_us,
            seen_us=now_us,
        )
