"""Conversations of an agent whose processes are killed: they go on, and no recorded model call is made a second time.

The local model writes each call that it receives to a file before it answers (harness/agent_kills.py), so the calls that were made are
compared with those that are recorded. Conversations are sequential: the model can be called for a turn only when the one before is recorded.

`c0` to `c2` have an engine and a worker in one process. `s0` has a worker of its own and the servers of the fleet.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from harness import agent_kills
from harness.agent_kills import CALLS, NAMED
from harness.fleet import EngineProcess
from harness.storm import Group, Storm, Target, Workload, fetch_rows
from perdure.core import events as ev
from perdure.wire.codec import decode_events
from tests.fakes.waiting import busy, until

CONVERSATIONS = 3
OWN, SERVED = "c", "s"
"""How names of conversations begin: whose engine is in the process that calls the model, and whose engine is a server."""
SCRIPT = Path(agent_kills.__file__)
KILLS_MIN = 2
"""Of the engine, and of the worker that the servers have."""

SERVER, WORKER = "-server-", "-worker"
"""In the names of logs."""
SESSION_LOST = "is gone: its runs belong to other engines"

Turn = tuple[str, int]
Excuse = Callable[[int, float, float], bool]
"""Whether a call of this process at the first moment may come again at the second one."""


class Calls:
    """What the model wrote down."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def made(self) -> list[tuple[str, int, int, float]]:
        """(conversation, turn, pid, moment), in the order of the calls."""
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [(conversation, int(turn), int(pid), float(at)) for conversation, turn, pid, at in lines]

    def counts(self) -> Counter[Turn]:
        return Counter((conversation, turn) for conversation, turn, _, _ in self.made())

    def end(self) -> None:
        """The next answer of each conversation is its last one."""
        self.file.with_name(f"{self.file.name}.over").touch()


class Records:
    """What the database has of the conversations."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def turns(self) -> dict[str, int]:
        """Conversation -> model calls of it that are recorded."""
        return {_conversation(h[0]): _recorded_calls(h) for h in (await self._histories()).values()}

    async def ends(self) -> dict[str, ev.Event]:
        histories = (await self._histories()).values()
        return {_conversation(h[0]): h[-1] for h in histories if isinstance(h[-1], ev.TERMINAL)}

    async def _histories(self) -> dict[bytes, list[ev.Event]]:
        named = "select run_id from perdure.%s where workflow like 'agent\\_%%'"
        runs = f"{named % 'run_queue'} union all {named % 'run'}"
        found: dict[bytes, list[ev.Event]] = defaultdict(list)
        for row in await fetch_rows(
            self._dsn, f"select run_id, body from perdure.history where run_id in ({runs}) order by run_id, seq"
        ):
            found[row["run_id"].bytes] += decode_events(row["body"])
        return found


def _conversation(started: ev.Event) -> str:
    assert isinstance(started, ev.RunStarted)
    return str(msgspec.json.decode(started.input)["conversation"])


def _recorded_calls(history: list[ev.Event]) -> int:
    seqs = {
        e.first + n
        for e in history
        if isinstance(e, ev.TasksScheduled) and e.name.endswith(".model_stream")
        for n in range(len(e.inputs))
    }
    return sum(len(seqs.intersection(e.seqs)) for e in history if isinstance(e, ev.TasksSucceeded))


def check_calls(
    calls: Calls, recorded_at_kills: Sequence[Counter[Turn]], excuses: Excuse, sessions_lost: Callable[[int], int]
) -> int:
    """Every call is either the one that is recorded, or was in flight at a kill. Returns how many were repeated.

    A process repeats a call of its own engine at most once for each session that this engine has lost.
    """
    last: dict[str, int] = defaultdict(int)
    callers: dict[Turn, list[tuple[int, float]]] = defaultdict(list)
    for conversation, turn, pid, at in calls.made():
        assert turn in (last[conversation], last[conversation] + 1), (
            f"{conversation} went back from turn {last[conversation]}"
        )
        last[conversation] = turn
        callers[conversation, turn].append((pid, at))
    assert callers.keys() == {(conversation, turn) for conversation in last for turn in range(last[conversation] + 1)}
    twice: Counter[tuple[str, int]] = Counter()
    """By conversation and process."""
    for key, found in callers.items():
        for (pid, at), (again, again_at) in pairwise(found):
            twice[key[0], pid] += again == pid and key[0].startswith(OWN)
            assert twice[key[0], pid] <= sessions_lost(pid), f"an engine called the model twice for {key}: {found}"
            assert excuses(pid, at, again_at), f"{key} was repeated although its process lived: {found}"
    final = calls.counts()
    for at_kill in recorded_at_kills:
        assert {key: final[key] for key in at_kill} == at_kill, "a recorded call was made again"
    return len(calls.made()) - len(callers)


class AgentEngine(Group):
    """An engine and its worker in one process."""

    every_s, engines = (0.5, 2.0), 1

    def __init__(self, load: AgentLoad, storm: Storm) -> None:
        self._load = load
        super().__init__(storm, "agent engine", self._engine, 1, "ready")

    def _engine(self, _: int) -> EngineProcess:
        words = (self._storm.dsn, str(CONVERSATIONS))
        return self._storm.fleet.client(SCRIPT, *words, environment={NAMED: "engine"})

    async def aim(self, randomness: random.Random) -> None:
        await self._load.moment(OWN, self._storm.kills[self.name], randomness)

    async def _kill_one(self, one: EngineProcess) -> None:
        await super()._kill_one(one)
        await self._load.note_recorded()


class AgentWorker(Group):
    every_s = (2.0, 5.0)

    def __init__(self, load: AgentLoad, storm: Storm) -> None:
        self._load = load
        super().__init__(storm, "agent worker", self._worker, 1, "connected")

    def _worker(self, _: int) -> EngineProcess:
        return self._storm.fleet.worker(self._storm.fleet.addresses, module="harness.agent_kills")

    async def aim(self, randomness: random.Random) -> None:
        await self._load.moment(SERVED, self._storm.kills[self.name], randomness)

    async def _kill_one(self, one: EngineProcess) -> None:
        await super()._kill_one(one)
        await self._load.note_recorded()


class AgentLoad(Workload):
    name = "agent"
    loops = ("agent_engine", "agent_kills")

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        self.calls, self.records = Calls(storm.directory / "calls"), Records(storm.dsn)
        os.environ[CALLS] = str(self.calls.file)
        self._storm = storm
        self._at_kills: list[Counter[Turn]] = []
        self._engine, self._worker = AgentEngine(self, storm), AgentWorker(self, storm)
        return self._engine, self._worker

    async def load(self, storm: Storm) -> None:
        await storm.client.start(agent_kills.converse.options(key="s0"), "s0")
        await storm.calm.wait()

    async def is_hit(self) -> bool:
        return min(self._storm.kills[one.name] for one in (self._engine, self._worker)) >= KILLS_MIN

    async def moment(self, kind: str, n: int, randomness: random.Random) -> None:
        """When to kill: in turn just after a model call was recorded, and at any moment of a call."""

        async def recorded() -> int:
            return sum(turns for name, turns in (await self.records.turns()).items() if name.startswith(kind))

        def made() -> int:
            return sum(conversation.startswith(kind) for conversation, *_ in self.calls.made())

        if n % 2 == 0:
            before = await recorded()

            async def one_more() -> bool:
                return await recorded() > before

            await until(one_more, "another model call is recorded")
        else:
            before = made()
            await until(lambda: made() > before, "the model is called")
            await busy(randomness.uniform(0, 0.3))

    async def note_recorded(self) -> None:
        """How often the model was called for each turn that is recorded. Records first: what is recorded later is not of interest."""
        turns = await self.records.turns()
        counts = self.calls.counts()
        self._at_kills.append(Counter({(c, turn): counts[c, turn] for c, n in turns.items() for turn in range(n)}))
        ends = await self.records.ends()
        assert not ends, f"conversations ended before the last kill: {ends}"

    async def settle(self, storm: Storm) -> None:
        self.calls.end()

        async def all_ended() -> bool:
            return len(await self.records.ends()) == CONVERSATIONS + 1

        await until(all_ended, "the conversations end", 90)

    async def check(self, storm: Storm) -> str:
        turns, ends = await self.records.turns(), await self.records.ends()
        assert turns.keys() == {*(f"c{n}" for n in range(CONVERSATIONS)), "s0"}
        for conversation, recorded in turns.items():
            last, end = recorded - 1, ends[conversation]
            assert isinstance(end, ev.RunSucceeded), end
            assert end.result == f'"turn {last} sums to {sum(range(last))}"'.encode()
            assert max(turn for name, turn, *_ in self.calls.made() if name == conversation) == last
        repeated = check_calls(self.calls, self._at_kills, self._excuses, self._sessions_lost)
        assert repeated <= storm.kills.total() * (CONVERSATIONS + 1)
        return f"{len(self.calls.made())} calls, {repeated} of them repeated"

    def _excuses(self, pid: int, at: float, again_at: float) -> bool:
        """Its process was killed in between, or the server of a worker; or its engine, or that server, was too slow to keep its session."""

        def was_killed(pid: int) -> bool:
            return at <= self._storm.died.get(pid, 0.0) <= again_at

        fleet = self._storm.fleet.engines
        (mine,) = (one for one in fleet if one.process.pid == pid)
        servers = (one for one in fleet if SERVER in one.err.name and WORKER in mine.err.name)
        engines = [mine, *servers]
        return any(was_killed(one.process.pid) or SESSION_LOST in one.err.read_text() for one in engines)

    def _sessions_lost(self, pid: int) -> int:
        (mine,) = (one for one in self._storm.fleet.engines if one.process.pid == pid)
        return mine.err.read_text().count(SESSION_LOST)
