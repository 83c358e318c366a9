"""One engine: its parts, built in the order in which they depend on each other, and the life of its session.

                      .------------------- events: what parts publish and others subscribe to -------------------.
                      |                                                                                           |
    API --> write queue --> committer --> database --> after commit --> run loop --> worker --> attempts --> write queue ...
                                 claims (runs, tasks, messages) --------^     timers, eviction
                                 services: schedules, named events, deferred starts, start deadlines, endings, telemetry, upkeep

services/lease.py says what happens when the session is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from perdure.core.work import Upstream
from perdure.engine.after_commit import AfterCommit
from perdure.engine.commits.committer import Committer
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.payloads import Payloads, PayloadStore
from perdure.engine.ports import Store, WorkerPort
from perdure.engine.retention_port import RetentionStore
from perdure.engine.runs.eviction import Eviction
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.inbox import InboxWriter
from perdure.engine.runs.loop import RunLoop, RunParts
from perdure.engine.runs.message_checks import MessageDoor
from perdure.engine.runs.run import ActiveRun
from perdure.engine.services.claims import Claims
from perdure.engine.services.deferred_starts import DeferredStarts, StartStore
from perdure.engine.services.endings import Endings, EndingStore
from perdure.engine.services.event_starts import EventStarts, EventStartStore
from perdure.engine.services.lease import Lease
from perdure.engine.services.named_events import NamedEvents, NamedEventStore
from perdure.engine.services.new_runs import NewRuns
from perdure.engine.services.notifications import Notifications
from perdure.engine.services.outcomes import Waiters
from perdure.engine.services.queries import Queries
from perdure.engine.services.retention import Retention
from perdure.engine.services.schedules import Scheduler, ScheduleStore
from perdure.engine.services.served import ServedDefinitions
from perdure.engine.services.service import Body, Service, ended, keep_running
from perdure.engine.services.start_deadlines import StartDeadlines, StartDeadlineStore
from perdure.engine.services.task_logs import TaskLogs, TaskLogStore
from perdure.engine.services.telemetry import Telemetry, TelemetryStore
from perdure.engine.services.updates import UpdatePort, Updates
from perdure.engine.services.upkeep import Upkeep
from perdure.engine.settings import EngineSettings
from perdure.engine.tasks.attempts import Attempt, Attempts
from perdure.engine.tasks.dispatch import Dispatcher
from perdure.engine.tasks.flight import Flight
from perdure.engine.tasks.lost_workers import LostWorkers
from perdure.engine.tasks.no_worker import NoWorker

log = logging.getLogger("perdure.engine")

EVICT_TICKS: Final = 5
"""Ticks between two checks for idle runs, unless memory is nearly full."""


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of one engine on its database."""

    store: Store
    telemetry: TelemetryStore
    task_logs: TaskLogStore
    updates: UpdatePort
    start_deadlines: StartDeadlineStore
    endings: EndingStore
    deferred_starts: StartStore
    schedules: ScheduleStore
    named_events: NamedEventStore
    event_starts: EventStartStore
    payloads: PayloadStore
    retention: RetentionStore


class Engine:
    def __init__(self, stores: Stores, worker: WorkerPort | None, settings: EngineSettings) -> None:
        context = self._context = EngineContext(stores.store, worker or NoWorker(), settings)
        self.settings, self.counters, self.clock = settings, context.counters, context.clock
        self.queue, self.background = context.queue, context.background
        self.session, self.events, self.new_run_id = context.session, context.events, context.new_run_id
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.payloads = Payloads(stores.payloads, settings)
        self.flow_control = FlowControl(stores.store, context.now_us)
        self.flows = Flows(stores.store, context.now_us)
        self.attempts = Attempts(context, self.flow_control)
        self.names, self.seal_history = context.names, stores.store.seal_history
        self.dispatcher = Dispatcher(context, self.flow_control, self.attempts)
        parts = RunParts(context, self.dispatcher, self.flows, self.flow_control, self.payloads)
        self.runs, self.timers, self.exits, self.delivery = parts.runs, parts.timers, parts.exits, parts.delivery
        self.loop = RunLoop(parts)
        self.eviction = Eviction(context, parts.runs, self.dispatcher, parts.exits)
        self.lost_workers = LostWorkers(context, self.payloads, parts.runs, self.attempts, self.dispatcher)
        self.inbox = InboxWriter(stores.store, context.events)
        self.message_door = MessageDoor(
            stores.store, parts.runs, self.flows, context.now_us, settings.payload_inline_bytes
        )
        self.claims = Claims(context, parts, self.loop, self.dispatcher)
        sink = AfterCommit(parts, self.loop, self.claims)
        self.committer = Committer(stores.store, context.session, context.queue, context.counters, sink)
        self.new_runs = new_runs = NewRuns(context, self.flow_control, parts.versions)
        self.deferred_starts = DeferredStarts(context, stores.deferred_starts, new_runs)
        self.waiters = Waiters(context, parts.runs, self.deferred_starts)
        self.scheduler = Scheduler(context, stores.schedules, self.flow_control)
        starts = EventStarts(context, stores.event_starts, new_runs, self.flows)
        self.named_events = NamedEvents(context, stores.named_events, starts)
        self.start_deadlines = StartDeadlines(context, stores.start_deadlines)
        self.endings = Endings(context, stores.endings, parts.runs, self.flow_control, self.lost_workers)
        self.telemetry = Telemetry(context, stores.telemetry, self.attempts, self.dispatcher.backlog)
        self.task_logs = TaskLogs(context.counters, stores.task_logs)
        self.upkeep = Upkeep(context, self.payloads)
        self.retention = Retention(context, stores.retention)
        self.updates = Updates(stores.updates, stores.store, context.events.message_sent.publish)
        self.queries = Queries(context, stores.updates, parts.runs, self.flows)
        self.notifications = Notifications(context)
        self.served = ServedDefinitions(
            context, parts.runs, self.dispatcher, self.flows, self.flow_control, self.telemetry
        )
        self.lease = Lease(context, self.name, self.committer, self.claims, self.lost_workers, self.served)
        self.versions = parts.versions
        self._tasks: list[asyncio.Task[None]] = []
        self.ns = 0
        """Number of the namespace that the engine was opened for."""
        self._subscribe()

    def _subscribe(self) -> None:
        """Subscribe the parts to the events of the engine."""
        events, background = self.events, self.background
        events.run_ended.subscribe(self.waiters.run_ended)
        events.run_ended.subscribe(lambda _: self.notifications.send("end"))
        events.runs_begun.subscribe(self._runs_begun)
        events.message_sent.subscribe(self._message_sent)
        events.event_wait_made.subscribe(self.named_events.wake)
        events.cancel_sent.subscribe(self.endings.wake)
        events.answers_recorded.subscribe(self.updates.answered)
        events.work_due.subscribe(self.claims.wake_in)
        events.slot_freed.subscribe(self.claims.slot_freed)
        events.start_deadline_set.subscribe(self.start_deadlines.wake_at)
        events.orphaned_task_ended.subscribe(
            lambda run_id, ns, end: background.start(self.lost_workers.orphaned_ended(run_id, ns, end))
        )
        events.other_engines_concerned.subscribe(self.notifications.send)
        events.task_signatures_received.subscribe(self.flows.hear)
        events.session_lost.subscribe(self.loop.forget_all)
        events.session_lost.subscribe(self.flow_control.forget_all)

    @property
    def upstream(self) -> Upstream:
        """Where workers of this engine send what they have."""
        return Upstream(
            clock_us=self._context.now_us,
            reported=self.dispatcher.reported,
            decided=self.loop.decided,
            beats=self.attempts.beats,
            logged=self.task_logs.add,
            deferred=self.dispatcher.deferred,
            ns=self.ns,
            payloads=self.payloads.of(self.ns).transfer,
        )

    def _runs_begun(self, runs: int) -> None:
        self.counters.runs_started += runs
        self.claims.wake()
        self.notifications.send("run")

    def _message_sent(self, run_id: bytes) -> None:
        self.claims.wake()
        if run_id not in self.runs:
            self.notifications.send("message")

    @property
    def services(self) -> tuple[Service, ...]:
        """Services without state in the engine's memory: a failure of one does not end the session."""
        return (
            self.upkeep,
            self.retention,
            self.waiters,
            self.start_deadlines,
            self.endings,
            self.named_events,
            self.telemetry,
            self.task_logs,
            self.deferred_starts,
            self.scheduler,
        )

    async def open(self) -> None:
        context = self._context
        await self.upkeep.prepare()
        await self.retention.prepare()
        self.ns = await context.store.namespace(self.settings.namespace)
        await self.lease.register()
        context.worker.open(self.upstream)
        try:
            await self.served.refresh()
            if self.settings.notify:
                await context.store.listen(self._notified)
        except BaseException:
            await context.worker.close()
            raise
        loops: dict[str, Body] = {
            "writing the progress of runs": self.committer.run,
            self.claims.name: self.claims.run,
            "renewing this engine's lease": self.lease.run,
            "waking runs whose timers are due": self._ticks,
        }
        self._tasks = [
            *(_task(name, self.lease.keep(name, body)) for name, body in loops.items()),
            *(
                _task(one.name, keep_running(one.name, one.run, pause_s_max=one.failed_pause_s_max))
                for one in self.services
            ),
        ]

    def add_service(self, service: Service) -> None:
        """Run a service that is built on the API of this engine, which is open."""
        body = keep_running(service.name, service.run, pause_s_max=service.failed_pause_s_max)
        self._tasks.append(_task(service.name, body))

    async def close(self) -> None:
        """Finish what is at hand, hand the rest back, and leave."""
        self.drain()
        worker, outlives_us = self._context.worker, self._context.worker.outlives_engine
        try:
            async with asyncio.timeout(self.settings.close_grace_s):
                await self.inbox.close()
                self.dispatcher.hand_back()
                if outlives_us:
                    self.attempts.write_rows()
                await self.attempts.landed()
                await self._release_all()
        except TimeoutError:
            log.warning("closing with %d tasks in flight; other engines will take over", len(self.attempts.flights))
            if outlives_us:
                await self._leave_running()
        await ended(self._tasks)
        await worker.close()
        await self.task_logs.close()
        await self.telemetry.close()
        if not (self.attempts.flights and outlives_us):
            # Else their rows stay with this session until its lease runs out: time enough to take them to another engine.
            await self.lease.leave()

    def abandon(self) -> list[asyncio.Task[None]]:
        """Tests only: end as a killed process does. Nothing is written or handed back, memory is lost, and the session stays until it is
        reaped. Returns what is being cancelled."""
        stopped = [*self._tasks, *self.background.tasks, *self.inbox.tasks]
        for task in stopped:
            task.cancel()
        self.session.lose()
        self.events.session_lost.publish()
        return stopped

    async def _leave_running(self) -> None:
        """Tasks continue on their workers, which reconnect to another engine."""
        try:
            async with asyncio.timeout(self.settings.close_grace_s):
                await self._release_all()
        except TimeoutError:
            log.warning("closing with records unwritten; other engines find out from the history")

    async def _release_all(self) -> None:
        await self.queue.drained()
        self.eviction.release_all()
        await self.queue.drained()

    async def _ticks(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(self.settings.tick_s)
            ticks += 1
            self.committer.refuse_if_away()
            self.dispatcher.tick(self.session.others_free)
            if self.runs and (ticks % EVICT_TICKS == 0 or self.eviction.is_crowded):
                self.eviction.evict_idle()

    def _notified(self, topics: str) -> None:
        """Another engine wrote something."""
        if "end" in topics:
            self.waiters.wake()
        if "answer" in topics:
            self.updates.wake()
        if "schedule" in topics:
            self.scheduler.wake()
        if "message" in topics or "run" in topics or "task" in topics or "rule" in topics:
            # Spread over a few milliseconds, so that one notification does not bring every engine to the same row at once.
            self.claims.wake_in(random.randrange(200, 5_000))

    def drain(self) -> None:
        """Accept no new runs or tasks; those in memory continue."""
        self.runs.draining = True

    @property
    def is_draining(self) -> bool:
        return self.runs.draining

    def run_in_memory(self, run_id: bytes) -> ActiveRun | None:
        return self.runs.get(run_id)

    def attempt_in_flight(self, run_id: bytes, seq: int) -> Flight | None:
        return self.attempts.get(run_id, seq)

    async def refresh(self) -> None:
        """The worker serves new workflows or tasks."""
        await self.served.refresh()

    def workers_changed(self) -> None:
        """Workers joined, left or changed what they serve: work that no worker here can run goes to other engines."""
        self.served.serve()
        self.dispatcher.unserved()
        self.eviction.release_unserved()
        self.workers_more()
        if not self.served.is_registered:
            self.background.start(self.served.refresh_quietly())

    def workers_more(self) -> None:
        """A worker joined an existing pool."""
        self.dispatcher.refill()
        self.claims.wake()

    async def worker_lost(self, attempts: list[Attempt], worker: str = "") -> None:
        await self.lost_workers.worker_lost(attempts, worker)

    async def present(self, ns: int, attempts: list[Attempt]) -> list[Attempt]:
        return await self.lost_workers.presented(ns, attempts)

    async def rules_changed(self) -> None:
        """Flow-control rules changed. This engine applies them before the request is acknowledged; the others are notified."""
        await self.flow_control.read_rules()
        self.dispatcher.queue_limited()
        self.claims.wake()
        self.notifications.send("rule")

    @property
    def is_quiet(self) -> bool:
        """Nothing runs, nothing is being written, nothing waits to be examined: only time or a message can change anything."""
        busy = self.attempts.flights or self.dispatcher.backlog.size or not self.queue.is_idle
        busy = busy or self.scheduler.polling or self.claims.polling
        return not busy and all(run.is_idle for run in self.runs.values())

    def next_wake_us(self) -> int | None:
        """The next moment at which a run in memory has something to do."""
        wakes = [run.state.next_wake_us() for run in self.runs.values()]
        wakes += [self.start_deadlines.next_us, self.endings.next_us]
        return min((w for w in wakes if w is not None), default=None)


def _task(name: str, body: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(body, name=f"perdure: {name}")
