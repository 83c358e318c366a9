"""The corpus through a real engine on a real PostgreSQL.

    live     one engine and a worker that does what the script says, one task at a time
    crashing engines die at every commit, in turn just before it is written and just after, so that nobody ever hears of it. The next one
             takes over what it finds in the database. Tasks are executed elsewhere, so what comes of them arrives as messages.

Time is the database's own, and stands as good as still but for `advance`, which stops at every timer on its way.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import messages, runs
from perdure.core.api.messages import ResolvePromise
from perdure.core.api.runs import CancelRun, ChangeRun
from perdure.core.durations import to_us
from perdure.core.errors import Failure, InvalidInput
from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import SignalMessage, TaskEndedMessage
from perdure.core.retry import End
from perdure.core.runstate import RunState
from perdure.core.work import Activation, Assignment, Decided, QueryCall, Report, ServedCode, StartRequest, Upstream
from perdure.engine.api.api import NamespaceApi
from perdure.engine.api.ports import Deployment
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.commits.rows import Batch
from perdure.engine.commits.store import Committed
from perdure.engine.engine import Engine
from perdure.engine.ports import CodeKey, Kind
from perdure.engine.settings import EngineSettings
from perdure.engine.tasks.lost_workers import settle_lost
from perdure.flows.draft import draft_text, draft_value
from perdure.store.definitions import PostgresDefinitions
from perdure.store.postgres import PostgresStore
from tests.fakes.api import api_on, engine_on
from tests.flows.case import Case, Outcome, label, of_attempt, scripted, value_of
from tests.flows.pure import World, failure_of

SETTINGS = EngineSettings(
    commit=CommitPolicy(lazy_us=500),
    notify=False,
    lease_s=600.0,
    heartbeat_s=300.0,
    tick_s=60.0,
)
SETTLE_S = 60.0
STEPS_MAX = 2_000
CRASHES_MAX = 100
"""Per case; what comes after that happens in peace."""
_numbers = itertools.count(1)


class CrashingStore:
    """A store that answers no commit: it takes no effect, or takes effect and nobody hears of it, by turns."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.armed = False
        self.crashed = False
        self.written = True
        """Whether the last commit that was not answered took effect."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create_partitions(self, ahead_days: int) -> int:
        return 0  # whoever opened the store has made them, once and not for each of some thousand engines

    async def commit(self, session: int, number: int, batch: Batch) -> Committed:
        if not self.armed:
            return await self._store.commit(session, number, batch)
        self.written = not self.written
        if self.written:
            await self._store.commit(session, number, batch)
        self.crashed = True
        await asyncio.Event().wait()
        raise AssertionError("nobody comes here")


class ScriptedWorker:
    """Takes every task and keeps it until it is told how it ends."""

    ns = 0
    outlives_engine = False
    slots = slots_free = 100_000

    def __init__(self, kinds: set[tuple[str, str]]) -> None:
        self._kinds = kinds
        self.tasks: dict[tuple[bytes, int], Assignment] = {}
        self._reported: Callable[[list[Report]], None]
        self._clock_us: Callable[[], int]

    @property
    def code(self) -> dict[CodeKey, ServedCode]:
        return {}

    @property
    def task_options(self) -> dict[str, bytes | None]:
        return {}

    @property
    def served(self) -> list[Kind]:
        return [(self.ns, queue, name) for queue, name in self._kinds]

    def free_for(self, kind: Kind) -> int:
        return self.slots

    def name_of(self, run_id: bytes, seq: int) -> str:
        return ""

    def open(self, upstream: Upstream) -> None:
        self.ns, self._clock_us, self._reported = upstream.ns, upstream.clock_us, upstream.reported

    def assign(self, batch: list[Assignment]) -> None:
        self.tasks.update({(a.run_id, a.seq): a for a in batch})

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        self.tasks.pop((run_id, seq), None)

    def activate(self, batch: list[Activation]) -> list[Decided]:
        raise AssertionError("flows are decided by the engine")

    def query(self, code: CodeKey, call: QueryCall) -> None:
        raise AssertionError("flows have no queries")

    def forget(self, run_id: bytes) -> None:
        pass

    def forget_all(self) -> None:
        self.tasks.clear()

    async def close(self) -> None:
        pass

    def end(self, run_id: bytes, seq: int, end: End, value: bytes, failure: Failure | None) -> None:
        a = self.tasks.pop((run_id, seq))
        now = self._clock_us()
        self._reported([Report(run_id, seq, a.attempt, end, value, failure, now, now, a.epoch)])


class Known:
    """A run as far as its history has been read."""

    def __init__(self, run_id: bytes, workflow: str, parent_seq: int) -> None:
        self.id, self.workflow, self.parent_seq = run_id, workflow, parent_seq
        self.history: list[ev.Recorded] = []
        self.state = RunState()
        self.executions: dict[str, int] = {}

    def names(self, seq: int) -> list[str]:
        name = label(self.state.tasks[seq], seq)
        return [f"{self.workflow}#{self.parent_seq}/{name}", f"{self.workflow}/{name}", name]


class EngineWorld:
    """One case. `run` plays it and returns the history of its run."""

    def __init__(self, store: PostgresStore, case: Case, name: str, *, crashing: bool) -> None:
        self.case, self.name, self.crashing = case, name, crashing
        self.store = CrashingStore(store)
        self._plain = store
        self.workflow = f"{name}_{next(_numbers)}"
        self.worker: ScriptedWorker | None = None
        self.engine: Engine
        self.api: NamespaceApi
        self.runs: list[Known] = []
        self.crashes = 0
        self._looking = False
        """The engine is just about to claim something, and may hold it already without showing it."""
        if not crashing:
            pure = World(case, name).run()
            scheduled = [r.event for run in pure.runs for r in run.history if isinstance(r.event, ev.TasksScheduled)]
            self.worker = ScriptedWorker({(e.queue, e.name) for e in scheduled})

    async def run(self) -> list[ev.Recorded]:
        self._plain.shift_clock(0.000_001)  # not quite nothing: the connections have to be told
        await self._open()
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._deploy()
                self.store.armed = self.crashing
                self.runs = [Known(await self._start(), self.workflow, -1)]
                await self._settle()
                for act in self.case.acts:
                    for verb, value in act.items():
                        await _ACTS[verb](self, value)
                    await self._settle()
                await self._read()
                history = list(self.runs[0].history)
                await self._tidy_up()
            return history
        finally:
            await self._abandon()

    # -- engines ----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self.engine = engine_on(self.store, self.worker, SETTINGS)  # type: ignore[arg-type]
        poll_once = self.engine.claims.poll_once

        async def watched() -> None:
            self._looking = True
            await poll_once()
            self._looking = False

        self._looking = False
        self.engine.claims.poll_once = watched  # type: ignore[method-assign]
        self.engine.flows.is_http = lambda ns, service: False  # type: ignore[method-assign]  # the cases call Python tasks
        await self.engine.open()
        self.api = api_on(self.engine, self._plain)

    async def _abandon(self) -> None:
        """The process is gone. Whoever looks next finds its session expired, and frees what it held."""
        engine = self.engine
        tasks = [*engine._tasks, *engine.background.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engine.timers.close()
        engine.claims.stop_timer()
        await self._plain.leave(engine.session.id, settle_lost)

    async def _replace(self) -> None:
        await self._abandon()
        self.crashes += 1
        self.store.crashed, self.store.armed = False, self.crashes < CRASHES_MAX
        await self._open()

    async def _deploy(self) -> None:
        registry = PostgresDefinitions(self._plain.pool)
        for name, document in {**self.case.flows, self.workflow: self.case.flow}.items():
            made = draft_text(document, name=name) if isinstance(document, str) else draft_value(document, name=name)
            deployment = Deployment(
                name=name,
                version=made.version,
                kind=made.flow.kind,
                description=None,
                document=made.document,
                source=made.source,
            )
            await registry.deploy(self.engine.ns, deployment)

    async def _start(self) -> bytes:
        """Asked for until somebody knows of it."""
        data = msgspec.json.encode(self.case.input)
        request = StartRequest(workflow=self.workflow, version="", input=data, key=self.workflow)
        while (found := await self._plain.run_by_key(self.engine.ns, self.workflow)) is None:
            starting = asyncio.ensure_future(self.api.call(runs.START, request))
            while not starting.done() and not self.store.crashed:
                await asyncio.wait([starting], timeout=0.000_5)
            if not starting.done():
                starting.cancel()
                await self._replace()
            elif isinstance(error := starting.exception(), InvalidInput):
                raise error
        return found[0]

    async def _tidy_up(self) -> None:
        """Nothing of a case is left for the next one to stumble over."""
        self.store.armed = False
        for run in self.runs:
            if not run.state.is_terminal:
                await self.api.call(runs.CANCEL, CancelRun(ids.text(run.id), "the case is over"))
        await self._quiet()

    # -- driving ----------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Until only an act or time can change anything."""
        for _ in range(STEPS_MAX):
            await self._quiet()
            await self._read()
            if not await self._end_next():
                return
        raise AssertionError(f"no end after {STEPS_MAX} steps")

    async def _quiet(self) -> None:
        while True:
            if self.store.crashed:
                await self._replace()
            engine = self.engine
            due = await self._plain.next_due([], list(engine.dispatcher.served), flows=True)
            engine.clock.sync(due.clock_us)
            engine.timers.fire()
            moments = (due.run_at_us, due.task_at_us, engine.next_wake_us())
            waits = due.has_messages or any(m is not None and m <= due.clock_us for m in moments)
            busy = engine.dispatcher.backlog.size or not engine.queue.is_idle or engine.background.tasks
            busy = busy or self._looking or engine.claims.is_woken
            if not waits and not busy and all(run.is_idle for run in engine.runs.values()):
                return
            await self._turn(wake=waits)

    async def _turn(self, *, wake: bool) -> None:
        """Shorter than a wait of `until`: a case takes hundreds of turns, and there are thousands of cases."""
        if wake:
            self.engine.claims.wake()
        await asyncio.sleep(0.000_5)

    async def _read(self) -> None:
        """What is new in the histories of the run and all its descendants."""
        reads = self.api.ports.reads
        for run in self.runs:
            while new := await reads.history(self.engine.ns, run.id, len(run.history), 1_000, 1 << 22):
                run.history.extend(new)
                for record in new:
                    run.state.apply(record.event)
                    if isinstance(record.event, ev.ChildStarted):
                        self.runs.append(Known(record.event.run_id, record.event.workflow, record.event.seq))

    async def _end_next(self) -> bool:
        for run in self.runs:
            for seq in sorted(run.state.tasks):
                names = run.names(seq)
                outcome = scripted(self.case.script, names)
                if "hang" not in of_attempt(outcome, run.executions.get(names[-1], 0) + 1):
                    await self._end_task(run, seq, outcome)
                    return True
        return False

    async def _end_task(self, run: Known, seq: int, outcome: Outcome) -> None:
        scheduled = run.state.tasks[seq]
        name = label(scheduled, seq)
        payload = scheduled.inputs[seq - scheduled.first]
        most = scheduled.options.max_attempts
        for attempt in range(1, most + 1):
            run.executions[name] = run.executions.get(name, 0) + 1
            now = of_attempt(outcome, run.executions[name])
            value = value_of(now, payload) if "ok" in now else b""
            failure = None if "ok" in now else failure_of(now)
            last = "ok" in now or "attempts" not in outcome or attempt == most
            if self.worker is not None:
                end = End.SUCCESS if "ok" in now else End.ERROR if not last else End.FINAL_ERROR
                await self._assigned(run.id, seq)
                self.worker.end(run.id, seq, end, value, failure)
            elif last:
                status = TaskStatus.SUCCESS if "ok" in now else TaskStatus.FAILED
                clock_us = self.engine.clock.now_us()
                message = TaskEndedMessage(seq, status, value, failure, attempt, 0, clock_us, clock_us, clock_us)
                await self._plain.send(run.id, self.engine.ns, message)
            if last:
                return

    async def _assigned(self, run_id: bytes, seq: int) -> None:
        """Another attempt comes when its time has come."""
        assert self.worker is not None
        while (run_id, seq) not in self.worker.tasks:
            await self._turn(wake=True)

    # -- acts -------------------------------------------------------------------------------------------------------

    async def _signal(self, value: dict[str, Any]) -> None:
        """Past the API, which would refuse a name that no node reads."""
        message = SignalMessage(value["name"], msgspec.json.encode(value.get("value")))
        await self.engine.inbox.send(self.api.ns, self.runs[0].id, message)

    async def _resolve(self, value: dict[str, Any]) -> None:
        data = msgspec.json.encode(value.get("value"))
        await self.api.call(messages.RESOLVE, ResolvePromise(ids.text(self.runs[0].id), value["name"], data))

    async def _cancel(self, why: str) -> None:
        await self.api.call(runs.CANCEL, CancelRun(ids.text(self.runs[0].id), why))

    async def _cancel_child(self, name: str) -> None:
        child = next(r for r in self.runs[1:] if r.workflow == name and not r.state.is_terminal)
        await self.api.call(runs.CANCEL, CancelRun(ids.text(child.id)))

    async def _retry(self, _: Any) -> None:
        await self.api.call(runs.RETRY, ChangeRun(ids.text(self.runs[0].id)))

    async def _end(self, value: dict[str, Outcome]) -> None:
        for name, outcome in value.items():
            run, seq = next((r, s) for r in self.runs for s in r.state.tasks if name in r.names(s))
            await self._end_task(run, seq, outcome)
            await self._settle()

    async def _advance(self, by: str) -> None:
        target_us = self.engine.clock.now_us() + to_us(by)
        while (wake := await self._next_wake_us()) is not None and wake <= target_us:
            await self._jump(wake)
        await self._jump(target_us)

    async def _next_wake_us(self) -> int | None:
        due = await self._plain.next_due([], [], flows=True)
        wakes = [w for w in (due.run_at_us, self.engine.next_wake_us()) if w is not None and w < 1 << 62]
        return min(wakes, default=None)

    async def _jump(self, to: int) -> None:
        behind_us = to - self.engine.clock.now_us()
        if behind_us > 0:
            self._plain.shift_clock(self._plain.clock_offset_s + behind_us / 1e6)
        await self._settle()


_ACTS: dict[str, Callable[[EngineWorld, Any], Any]] = {
    "signal": EngineWorld._signal,
    "resolve": EngineWorld._resolve,
    "advance": EngineWorld._advance,
    "cancel": EngineWorld._cancel,
    "cancel_child": EngineWorld._cancel_child,
    "retry": EngineWorld._retry,
    "end": EngineWorld._end,
}
