"""One engine: a session in the database, runs in memory, and the loops that keep both going.

Life of a session:

    register -> renew every heartbeat_s -> ... -> reaped by another engine when silent for lease_s
        ^                                              |
        '---- forget everything, register anew <-------'   (a write or a renewal finds no session row: `Fenced`)
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Coroutine, Iterator
from os import urandom  # bound here, before workflow guards wrap it
from struct import Struct
from time import monotonic
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.calls import BUILT_IN
from perdure.core.commands import StartChild
from perdure.core.errors import Failure, Fenced, NotFound, Unavailable
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import OUTAGE_OVER_S
from perdure.core.messages import TaskEnded
from perdure.core.outage import Outage
from perdure.core.placement import Placement
from perdure.core.work import Decided, LogChunk, Outcome, Report, RunView
from perdure.engine.clock import DatabaseClock
from perdure.engine.commits.committer import AwaitedUnit, Committer, Unit
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.counters import Counters
from perdure.engine.ports import Committed, Named, Store, WorkerPort
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.inbox import Postbox
from perdure.engine.runs.loop import RunLoop
from perdure.engine.runs.run import ActiveRun, Extras, RunUnit
from perdure.engine.runs.starts import StartUnit, StartWatch
from perdure.engine.services.claims import Claimer, ClaimInDoubt, Token
from perdure.engine.services.deferred_starts import Starts, StartStore
from perdure.engine.services.endings import Endings
from perdure.engine.services.named_events import NamedEvents
from perdure.engine.services.outcomes import Waiters
from perdure.engine.services.schedules import Scheduler, ScheduleStore
from perdure.engine.services.start_deadlines import Expiry
from perdure.engine.services.telemetry import Notes, WorkerRow
from perdure.engine.services.updates import UpdatePort, Updates
from perdure.engine.services.upkeep import Maintenance
from perdure.engine.tasks.dispatch import Dispatcher, ReportUnit, RequeueUnit, settle_lost
from perdure.engine.tasks.flow_control import Lines
from perdure.wire.codec import encode_mail

log = logging.getLogger("perdure.engine")


SERVICE_PAUSE_S_MAX: Final = 5.0
"""Before a service that keeps failing is tried again."""
LOOK_UP_PAUSE_S: Final = 0.5
_NUMBERS: Final = Struct("512Q")
"""Random numbers that are drawn together, for run ids."""
"""Before a look-up that the database did not answer is tried again."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = "default"
    shard: int = 0
    lease_s: float = 15.0
    """A session that is silent for this long, by the database's clock, loses its runs."""
    heartbeat_s: float = 5.0
    tick_s: float = 0.1
    runs_max: int = 4_096
    """Runs held in memory; more wait in the database."""
    commit: CommitPolicy = CommitPolicy()
    placement: Placement = Placement()
    notify: bool = True
    """Use LISTEN/NOTIFY to wake other engines. Never needed for correctness."""
    retention_days: float | None = None
    """Ended runs older than this are dropped with their partition; None keeps everything."""
    partitions_ahead_days: int = 3
    close_grace_s: float = 10.0


class Engine:
    def __init__(
        self,
        store: Store,
        worker: WorkerPort | None,
        settings: EngineSettings,
        notes: Notes | None = None,
        *,
        updates: UpdatePort,
        starts: StartStore,
        schedules: ScheduleStore,
        named_events: NamedEvents,
        expiry: Expiry | None = None,
        endings: Endings | None = None,
    ) -> None:
        self._store, self._worker, self.settings, self.notes, self.expiry = store, worker, settings, notes, expiry
        self.endings = endings
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.counters = Counters()
        self.clock = DatabaseClock()
        self.session = 0
        self.renewed_s = 0.0
        """When the session was last written, by the monotonic clock."""
        self._worker_id = urandom(16)
        self._opened_us = 0
        self._others = self._others_free = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._rejoining = asyncio.Lock()
        self._notify_due: set[str] = set()
        self._registered: dict[Named, str] = {}
        self._declared: dict[str, bytes | None] = {}
        """Options of the worker's tasks, as the database has them."""
        self._background: set[asyncio.Task[None]] = set()
        self.loop = RunLoop(
            worker, self.counters, self.clock.now_us, self.new_run_id, settings.placement, settings.runs_max
        )
        self.committer = Committer(
            store, settings.commit, self.counters, self.clock.now_us, self._committed, self._refused, self._given_up
        )
        self.lines = self.loop.lines = Lines(store, self.clock.now_us)
        self.dispatcher = Dispatcher(
            worker,
            self.counters,
            self.clock.now_us,
            settings.placement,
            self._mark,
            self.committer.add,
            self._wake_claims,
            self._stray_ended,
            self.lines,
        )
        self.dispatcher.tick_us = int(settings.tick_s * 1e6)
        self.loop.committer, self.loop.dispatcher = self.committer, self.dispatcher
        self.claimer = Claimer(store, self.loop, self.dispatcher, worker, self.counters, self.lines)
        self.waiters = Waiters(store)
        self._randomness: Iterator[int] = iter(())
        self.inbox = Postbox(store, self._described, self.message_posted)
        self.named_events = named_events
        named_events.posted = self.message_posted
        self.deferred_starts = Starts(starts, self.clock.now_us, self.new_run_id, self.lines, self._begun)
        self.waiters.expected = self.deferred_starts.expected
        self.scheduler = Scheduler(
            schedules,
            self.counters,
            self.new_run_id,
            self.lines,
            self._begun,
            lambda: self._notify("schedule"),
            settings.retention_days,
        )
        self.flows = self.loop.flows = Flows(store, self.clock.now_us)
        self.loop.look_up = self._look_up
        self.loop.ended = self._run_ended
        self.loop.released = self._run_released
        self.loop.reload = self.claimer.poke
        self.loop.settled = lambda run: self._soon(self._settle(run))
        self.updates = Updates(updates, store, self.message_posted)
        self.loop.on_answers = self.updates.answered
        self.maintenance = Maintenance(store, settings.retention_days, settings.partitions_ahead_days)
        self.ns = 0
        """Of the namespace that the engine was opened for."""
        self._start_watch = StartWatch()

    # -- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.maintenance.prepare()
        ns = await self._store.namespace(self.settings.namespace)
        self.ns = ns
        if self._worker is not None:
            self._worker.ns = ns
        await self._register()
        self._opened_us = self.clock.now_us()
        await self.refresh()
        if self._worker is not None:
            self._worker.open(self.clock.now_us, self._reported, self.loop.decided, self.dispatcher.beats, self._logged)
        if self.settings.notify:
            await self._store.listen(self._heard)
        loops: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "writing the progress of runs": self.committer.run,
            "claiming runs": self.claimer.run,
            "renewing this engine's lease": self._heartbeats,
            "waking runs whose timers are due": self._ticks,
            "waiting for the ends of other engines' runs": self._wait_for_others,
            "upkeep of the database": self.maintenance.run,
        }
        services: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        if self.expiry is not None:
            self.expiry.attach(self.counters, lambda: self.session, self.clock.now_us, self.message_posted)
            self.dispatcher.expires = self.expiry.wish
            services["failing tasks that did not start in time"] = self.expiry.run
        if self.endings is not None:
            self.endings.attach(lambda: self.session, lambda: list(self.loop.workflows), self._ended_without_code)
            self.inbox.cancel_posted = self.endings.poke
            services["ending runs whose code cannot run"] = self.endings.run
        services["delivering named events"] = self.named_events.run
        if self.notes is not None:
            self.notes.attach(
                self.counters,
                lambda: self.session,
                lambda: self.dispatcher.flights.values(),
                self._worker.name_of if self._worker is not None else lambda run_id, seq: "",
            )
            services["writing task output and progress"] = self.notes.run
        services["starting deferred runs"] = self.deferred_starts.run
        services["firing schedules"] = self.scheduler.run
        self._tasks = [
            *(self._looping(self._forever(what, one), one) for what, one in loops.items()),
            *(self._looping(self._keep(what, one), one) for what, one in services.items()),
        ]
        self.claimer.poke()

    def owns(self, ns: int, run_id: bytes) -> bool:
        """Whether a run is in this engine's memory."""
        run = self.loop.runs.get(run_id)
        return run is not None and run.ns == ns

    def watch_start(self, unit: StartUnit, within_s: float, due_s: float) -> None:
        """Answer the caller of a start that takes too long."""
        self._start_watch.add(unit, within_s, due_s)

    async def refresh(self) -> None:
        """The worker learned new workflows or tasks."""
        if self._worker is None:
            return
        self.serve()
        fresh = {n: v for n, v in self.loop.workflows.items() if self._registered.get(n) != v}
        for ns in {ns for ns, _ in fresh}:
            versions = {name: v for (of, name), v in fresh.items() if of == ns}
            controls = {name: c for (of, name), c in self._worker.controls.items() if of == ns}
            parameters = {name: taken for (of, name), taken in self._worker.parameters.items() if of == ns}
            await self._store.register_versions(ns, versions, controls, parameters)
            for name, version in versions.items():
                self.flows.learn((ns, name, version), parameters.get(name))
                self.lines.learn((ns, name, version), controls.get(name), own=True)
        self._registered.update(fresh)
        options = self._worker.task_options
        if options != self._declared:
            await self.flows.declare(self._worker.ns, options)
            self._declared = options
        if self.notes is not None and not self._worker.outlives_engine:
            self.notes.set_workers([self._own_worker(self._worker)])

    def _own_worker(self, worker: WorkerPort) -> WorkerRow:
        """The worker in this process, as people see it."""
        now_us = self.clock.now_us()
        served = worker.served
        return WorkerRow(
            id=self._worker_id, ns=worker.ns, name=self.name, host=socket.gethostname(), pid=os.getpid(), sdk="embedded",
            queues=sorted({queue for _, queue, _ in served}), tasks=sorted({name for _, _, name in served} - BUILT_IN),
            workflows=sorted(name for _, name in worker.workflows), slots=worker.slots, slots_used=worker.slots - worker.slots_free,
            runs_held=len(self.loop.runs), draining=not self.claimer.may_claim, connected_us=self._opened_us, seen_us=now_us,
        )  # fmt: skip

    def serve(self) -> None:
        """Claim and run what workers define by now; `refresh` registers it as well."""
        if self._worker is not None and self.claimer.may_claim:
            self.dispatcher.served = frozenset(self._worker.served)
            self.loop.workflows = dict(self._worker.workflows)

    # -- remote workers ---------------------------------------------------------------------------------------------

    def workers_changed(self) -> None:
        """One came, one left, or one serves something else: what nobody here can run goes to whoever can."""
        self.serve()
        self.dispatcher.unserved()
        self.loop.release_unserved()
        self.dispatcher.refill()
        self.claimer.poke()
        if any(self._registered.get(n) != v for n, v in self.loop.workflows.items()):
            self._soon(self._register_versions())

    def workers_more(self) -> None:
        """One more of a kind that is here already."""
        self.dispatcher.refill()
        self.claimer.poke()

    async def _register_versions(self) -> None:
        try:
            await self.refresh()
        except Unavailable as e:
            log.warning("workflows of a new worker are not registered yet: %s", e)  # the next heartbeat does it

    async def worker_lost(self, tokens: list[Token]) -> None:
        """A worker that had these attempts has not come back in time."""
        try:
            elsewhere = await self.claimer.elsewhere(tokens)
        except Unavailable:
            elsewhere = set()  # a recorded end of such an attempt would still be the first, and only, one
        self.dispatcher.lost(tokens, elsewhere)

    async def present(self, ns: int, tokens: list[Token]) -> list[Token]:
        """A worker came with running attempts. Returns those that nobody waits for any more."""
        flights = self.dispatcher.flights
        foreign = [
            t
            for t in tokens
            if (f := flights.get((t[0], t[1]))) is None or f.assignment.attempt != t[2] or f.assignment.ns != ns
        ]
        return await self.claimer.adopt(ns, foreign)

    def _stray_ended(self, run_id: bytes, ns: int, mail: TaskEnded) -> None:
        self._soon(self._post_stray(run_id, ns, mail))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _post_stray(self, run_id: bytes, ns: int, mail: TaskEnded) -> None:
        try:
            if await self._store.post(run_id, ns, encode_mail(mail)) is not None:
                self.message_posted(run_id)
        except Unavailable as e:
            log.warning("the result of a task that outlived its engine is lost, it will run again: %s", e)

    async def close(self) -> None:
        """Finish what is at hand, hand the rest back, and leave."""
        self.claimer.may_claim = False
        try:
            async with asyncio.timeout(self.settings.close_grace_s):
                await self.inbox.close()
                self.dispatcher.hand_back()
                if self._worker is not None and self._worker.outlives_engine:
                    self.dispatcher.write_rows()
                while self.dispatcher.flights:  # noqa: ASYNC110 - the end of a task has no event of its own
                    await asyncio.sleep(0.01)
                await self._release_all()
                await self.committer.drained()
        except TimeoutError:
            log.warning("closing with %d tasks in flight; other engines will take over", len(self.dispatcher.flights))
            if self._worker is not None and self._worker.outlives_engine:
                await self._leave_running()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._worker is not None:
            await self._worker.close()
        if self.notes is not None:
            await self.notes.close()
        if self.dispatcher.flights and self._worker is not None and self._worker.outlives_engine:
            return  # their rows stay with this session until its lease runs out: time enough to take them to another engine
        try:
            await self._store.leave(self.session, settle_lost)
            if self._others:
                await self._store.notify("run,task")
        except Unavailable as e:
            log.warning("could not sign off, the lease will run out instead: %s", e)

    async def _leave_running(self) -> None:
        """Tasks go on where they run, and their workers take them to another engine."""
        try:
            async with asyncio.timeout(self.settings.close_grace_s):
                await self._release_all()
                await self.committer.drained()
        except TimeoutError:
            log.warning("closing with records unwritten; other engines find out from the history")

    async def _release_all(self) -> None:
        await self.committer.drained()
        for run in list(self.loop.runs.values()):
            if not run.closing and not run.evicted:
                self.loop.release(run)

    async def _register(self) -> None:
        session = await self._store.register(
            self.name, self.settings.lease_s, self._worker.slots if self._worker else 0
        )
        self.renewed_s = monotonic()
        self.committer.writable()
        self.clock.sync(session.clock_us)
        self.session = self.committer.session = self.claimer.session = session.id
        self.committer.number = 0

    def _looping(self, kept: Coroutine[Any, Any, None], body: Callable[[], Any]) -> asyncio.Task[None]:
        return asyncio.create_task(kept, name=f"perdure-{body.__qualname__}")

    async def _forever(self, what: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep a loop going through outages, with a pause; a lost session is replaced by a new one."""
        pause_s, outage = 0.05, Outage(what, log, monotonic)
        while True:
            session = self.session
            began = asyncio.get_running_loop().time()
            recovered = asyncio.get_running_loop().call_later(OUTAGE_OVER_S, outage.over)
            try:
                await body()
                return
            except Fenced:
                await self._rejoin(session)
            except Unavailable as e:
                outage.failed(e)
            except ClaimInDoubt as e:
                log.warning("a claim may have taken effect without an answer; this engine starts over: %s", e)
                await self._start_over(self.session)
            except Exception as e:
                # Crash only: whatever state this left in memory is given up, and read again from the database.
                log.error("%s failed; this engine starts over", what, exc_info=e)
                await self._start_over(self.session)  # whichever it is by now: a body may outlive several
            finally:
                recovered.cancel()
            if asyncio.get_running_loop().time() - began > 5:
                pause_s = 0.05
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, 1.0)

    async def _keep(self, what: str, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Keep a service going that holds nothing of the engine's memory: its fault costs no session."""
        pause_s, outage = 0.05, Outage(what, log, monotonic)
        while True:
            began = asyncio.get_running_loop().time()
            recovered = asyncio.get_running_loop().call_later(OUTAGE_OVER_S, outage.over)
            try:
                await body()
                return
            except Exception as e:
                outage.failed(e, unexpected=not isinstance(e, Unavailable))
            finally:
                recovered.cancel()
            if asyncio.get_running_loop().time() - began > 5:
                pause_s = 0.05
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, SERVICE_PAUSE_S_MAX)

    async def _start_over(self, session: int) -> None:
        try:
            await self._store.leave(session, settle_lost)
        except Exception as e:
            log.warning("could not sign off, the lease will run out instead: %s", e)
        await self._rejoin(session)

    async def _rejoin(self, lost: int) -> None:
        """This engine was taken for dead. Its memory is void; it starts over as a new one."""
        async with self._rejoining:
            if self.session != lost:
                return
            self.counters.fenced += 1
            log.warning("session %d is gone: its runs belong to other engines now; registering anew", lost)
            # No session from here on: an answer to anything asked under the old one is late, whenever it arrives.
            self.session = self.committer.session = self.claimer.session = 0
            self.loop.forget_all()
            self.lines.forget_all()
            outage = Outage("registering this engine", log, monotonic)
            while True:
                try:
                    await self._register()
                    break
                except Exception as e:
                    outage.failed(e)
                    await asyncio.sleep(0.5)
            outage.over()
            self.claimer.poke()

    # -- loops ------------------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_s * random.uniform(0.8, 1.0))
            free = self._worker.slots_free if self._worker else 0
            renewed = await self._store.renew(
                self.session, self.settings.lease_s, self._worker.slots if self._worker else 0, free
            )
            if renewed is None:
                raise Fenced(f"session {self.session} is gone")
            self.renewed_s = monotonic()
            self.committer.writable()
            self.clock.sync(renewed.clock_us)
            self._others, self._others_free = renewed.others, renewed.others_free
            if renewed.expired:
                reaped = await self._store.reap(settle_lost)
                self.counters.sessions_reaped += reaped
                if reaped:
                    self.claimer.poke()
            await self._store.trim_commit_log(self.session, self.committer.number - 10)
            await self.claimer.check_claims()
            await self.refresh()

    async def _ticks(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(self.settings.tick_s)
            ticks += 1
            self.committer.refuse_if_away()
            if self.dispatcher.flights or self.dispatcher.backlog.size:
                self.dispatcher.tick(self._others_free)
            if self.loop.runs and (ticks % 5 == 0 or len(self.loop.runs) > self.settings.runs_max // 2):
                self.loop.evict_idle()

    async def _wait_for_others(self) -> None:
        await self.waiters.run(lambda run_id: run_id in self.loop.runs)

    # -- after a commit ---------------------------------------------------------------------------------------------

    def _committed(self, units: list[Unit], result: Committed, session: int) -> None:
        if session != self.session:
            self._committed_too_late(units, result)
            return
        if not result.doubtful:  # else the reading is as old as the doubt
            self.clock.sync(result.at_us)
        for unit in units:
            if isinstance(unit, RunUnit):
                self.loop.committed(unit, result.at_us, result.started)
                self._tell_others(unit)
            elif isinstance(unit, StartUnit):
                self._started(unit, unit.run_id in result.started, result.at_us)
            else:
                if isinstance(unit, ReportUnit | RequeueUnit):
                    self.lines.released(unit.task_id)
                self._notify("mail")
        if self.lines.freed or self.claimer.mail_left:
            self.claimer.poke()
        self.dispatcher.refill()

    def _committed_too_late(self, units: list[Unit], result: Committed) -> None:
        """Durable, but the session has expired since: the runs belong to others. Only those who wait for a start are told."""
        for unit in units:
            if isinstance(unit, StartUnit):
                unit.settle(unit.run_id in result.started)

    def _started(self, unit: StartUnit, created: bool, at_us: int) -> None:
        self.loop.reserved = max(0, self.loop.reserved - unit.own)
        if created:
            self.counters.runs_started += 1
            if unit.own:
                run = ActiveRun(unit.run_id, unit.ns, unit.request.workflow, unit.request.version, 1)
                run.head = unit.head
                self.loop.begin(run, unit.started, at_us)
            else:
                self.claimer.poke()
                self._notify("run")
        unit.settle(created)

    def _refused(self, unit: Unit, why: str) -> None:
        """A record the database will not take. The run behind it is set aside with the reason; nobody else suffers."""
        failure = Failure("poison", f"the database refuses a record of this run: {why}")
        if isinstance(unit, StartUnit):
            self.loop.reserved = max(0, self.loop.reserved - unit.own)
            asyncio.get_running_loop().create_task(self._refused_start(unit, failure.message))
        elif isinstance(unit, RunUnit):
            run = unit.run
            run.pending.extendleft(reversed(unit.segments))
            self.loop.drop_pending(run)
            run.outcome = None
            run.closing = run.writing = False
            self.loop.release(run, failure.message)

    def _given_up(self, unit: AwaitedUnit) -> None:
        """A start that is not written, because its caller does not wait for it any more."""
        if isinstance(unit, StartUnit):
            self.loop.reserved = max(0, self.loop.reserved - unit.own)

    async def _refused_start(self, unit: StartUnit, why: str) -> None:
        """A start that was written again after its session was lost is refused when the first one had counted."""
        try:
            exists = bool(await self._store.existing(unit.ns, [unit.run_id]))
        except Unavailable:
            exists = False
        unit.settle(exists, None if exists else Unavailable(why))

    # -- wiring -----------------------------------------------------------------------------------------------------

    def _reported(self, reports: list[Report]) -> None:
        self.dispatcher.reported(reports)
        if self.claimer.hungry:
            self.claimer.poke()

    def _logged(self, chunks: list[LogChunk]) -> None:
        if self.notes is not None:
            self.notes.log_chunks(chunks)

    def _mark(self, run: ActiveRun, urgent: bool) -> None:
        self.committer.mark(run, urgent=urgent)

    def _wake_claims(self, delay_us: int) -> None:
        # A moment later: the row that falls due is not committed yet.
        self.claimer.poke_in(max(delay_us, 5_000))

    def may_own(self, ns: int, workflow: str, version: str) -> bool:
        return self.claimer.may_claim and self.loop.reserve(ns, workflow, version)

    def _look_up(self, run: ActiveRun, names: list[str], d: Decided) -> None:
        self._soon(self._find_children(run, names, d))

    async def _find_children(self, run: ActiveRun, names: list[str], d: Decided) -> None:
        try:
            await self.flows.find(run.ns, names)
            await self.lines.find(run.ns, self._versions(run.ns, d))
        except Unavailable as e:
            log.warning("cannot look up %s: %s", ", ".join(names), e)
            await asyncio.sleep(LOOK_UP_PAUSE_S)
        if self.loop.runs.get(run.id) is run:  # else it was given up meanwhile, and whoever takes it up decides anew
            self.loop.decided([d])

    def _versions(self, ns: int, d: Decided) -> list[tuple[str, str]]:
        """The versions that a decision starts children of."""
        children = [c for c in d.commands if isinstance(c, StartChild)]
        found = [(c.workflow, c.version or self.flows.current(ns, c.workflow)) for c in children]
        return [(workflow, version) for workflow, version in found if version]

    def _run_ended(self, run: ActiveRun, outcome: Outcome, successor: bytes | None) -> None:
        self.waiters.ended(run.ns, run.id, outcome, successor)
        self._notify("end")

    def _ended_without_code(self, runs: list[ActiveRun]) -> None:
        """Runs that the service of endings ended, durably."""
        for run in runs:
            assert run.outcome is not None
            status, value, failure, _ = run.outcome
            self.counters.runs_ended += 1
            self.counters.runs_ended_without_code += 1
            self.counters.runs_failed += status is RunStatus.FAILED
            self.counters.runs_cancelled += status is RunStatus.CANCELLED
            self.lines.freed.update((run.ns, key) for key in run.keys)
            log.info("run %s of %s was ended without its code: %s", run.id.hex(), run.workflow, failure)
            if self.loop.on_closed is not None:
                self.loop.on_closed(run)
            self._run_ended(run, Outcome(status, value, failure), None)
        ended = {run.id for run in runs}
        stray = [f for (run_id, _), f in self.dispatcher.flights.items() if run_id in ended]
        self.dispatcher.drop_stolen(stray)
        self.claimer.poke()  # their parents and children have mail
        self._notify("mail")

    async def _settle(self, run: ActiveRun) -> None:
        try:
            await self.claimer.settle(run)
        except Unavailable as e:
            log.warning("run %s is still counted as one that engines do not survive: %s", ids.text(run.id), e)

    def _run_released(self, wake_us: int | None) -> None:
        if wake_us is not None:
            delay_us = wake_us - self.clock.now_us()
            if delay_us < 1_000_000:
                self.claimer.poke_in(delay_us)

    def _begun(self, runs: int) -> None:
        """Runs were written that nobody owns yet."""
        self.counters.runs_started += runs
        self.claimer.poke()
        self._notify("run")

    async def rules_changed(self) -> None:
        """People set or took back rules of flow control, or paused something. They hold here before anybody is told that they are set;
        the other engines are to look at once."""
        await self.lines.read_rules()
        self.dispatcher.line_up()
        self.claimer.poke()
        self._notify("rule")

    async def _described(self, run_id: bytes, ns: int) -> RunView:
        view = await self._store.describe(run_id, ns)
        if view is None:
            raise NotFound(f"no run {ids.text(run_id)} in this namespace")
        return view

    def message_posted(self, run_id: bytes) -> None:
        self.claimer.poke()
        if run_id not in self.loop.runs:
            self._notify("mail")

    def _tell_others(self, unit: RunUnit) -> None:
        for s in unit.segments:
            if s.release is not None:
                if s.release[1] is not None and unit.run.keys:  # stuck: its slots are free
                    self.lines.freed.update((unit.run.ns, key) for key in unit.run.keys)
                self.claimer.poke_in(1_000)
                self._notify("run")
        for x in unit.extras:
            self._tell_of(x)

    def _tell_of(self, x: Extras) -> None:
        if x.posts:
            self.claimer.poke()
            self._notify("mail")
        if x.answers:
            self._notify("answer")
        waiting = [row[9] for row in x.queue_ops.values() if row is not None and row[6] == 0]
        if waiting:
            self.claimer.poke_in(min(waiting))  # it can be claimed from now on, here as elsewhere
            self._notify("task")
        if self.lines.holding:
            for task_id, row in x.queue_ops.items():
                if row is None or row[6] == 0:
                    self.lines.released(task_id)
        if any(not c.own for c in x.starts):
            self.claimer.poke_in(1_000)
            self._notify("run")

    def _notify(self, topic: str) -> None:
        """Wake other engines, at most once in a few milliseconds, outside any transaction, and only when there are others."""
        if not self._others or not self.settings.notify:
            return
        if not self._notify_due:
            asyncio.get_running_loop().call_later(0.005, self._send_notifications)
        self._notify_due.add(topic)

    def _send_notifications(self) -> None:
        topics, self._notify_due = self._notify_due, set()
        self.counters.notifications += 1
        task = asyncio.get_running_loop().create_task(self._store.notify(",".join(sorted(topics))))
        task.add_done_callback(lambda t: t.cancelled() or t.exception())

    def _heard(self, topics: str) -> None:
        if "end" in topics:
            self.waiters.wake()
        if "answer" in topics:
            self.updates.wake()
        if "schedule" in topics:
            self.scheduler.poke()
        if "mail" in topics or "run" in topics or "task" in topics or "rule" in topics:
            # Spread over a few milliseconds, so that one notification does not bring every engine to the same row at once.
            self.claimer.poke_in(random.randrange(200, 5_000))

    @property
    def is_quiet(self) -> bool:
        """Nothing runs, nothing is being written, nothing waits to be looked at: only time or mail can change anything."""
        busy = self.dispatcher.flights or self.dispatcher.backlog.size or not self.committer.is_idle
        busy = busy or self.scheduler.looking
        return not busy and not self.claimer.looking and all(run.is_idle for run in self.loop.runs.values())

    def next_wake_us(self) -> int | None:
        """The next moment at which a run in memory has something to do."""
        wakes = [run.state.next_wake_us() for run in self.loop.runs.values()]
        wakes.append(self.expiry.next_us if self.expiry is not None else None)
        wakes.append(self.endings.next_us if self.endings is not None else None)
        return min((w for w in wakes if w is not None), default=None)

    def new_run_id(self) -> bytes:
        randomness = next(self._randomness, None)
        if randomness is None:
            self._randomness = iter(_NUMBERS.unpack(urandom(_NUMBERS.size)))
            randomness = next(self._randomness)
        return ids.run_id(self.clock.now_us() // 1000, self.settings.shard, randomness)
