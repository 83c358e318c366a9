"""Conversations of an agent whose processes are killed, again and again: they go on, and no recorded model call is made a second time.

The local model writes each call that it receives to a file before it answers (harness/agent_kills.py), so the calls that were made are
compared with those that are recorded. Conversations are sequential: the model can be called for a turn only when the one before is recorded.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import asyncpg
import msgspec
import pytest
from harness import agent_kills
from harness.agent_kills import CALLS, MODEL_TASK

from perdure import Client
from perdure.core import events as ev
from perdure.wire.codec import decode_events
from tests.cli.live import ROOT
from tests.cli.processes import Program, server, started
from tests.fakes.waiting import busy, until

KILLS = int(os.environ.get("PERDURE_AGENT_KILLS", "10"))
SEED = int(os.environ.get("PERDURE_CRASH_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
CONVERSATIONS = 3
TURNS = 3 * KILLS + 2
"""More than are recorded between two kills, so that the conversations last until the last kill."""
SCRIPT = Path(agent_kills.__file__)
WORKER_KILLS, WORKER_TURNS = 2, 4


class Calls:
    """What the model wrote down."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def made(self) -> list[tuple[str, int, int]]:
        """(conversation, turn, pid), in the order of the calls."""
        lines = (line.split() for line in self.file.read_text().splitlines())
        return [(conversation, int(turn), int(pid)) for conversation, turn, pid in lines]

    def counts(self) -> Counter[tuple[str, int]]:
        return Counter((conversation, turn) for conversation, turn, _ in self.made())


class Records:
    """What the database has of the conversations."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def turns(self) -> dict[str, int]:
        """Conversation -> model calls of it that are recorded."""
        histories = await self._histories()
        return {_conversation(h[0]): _recorded_calls(h) for h in histories.values()}

    async def ends(self) -> list[ev.Event]:
        return [h[-1] for h in (await self._histories()).values() if isinstance(h[-1], ev.TERMINAL)]

    async def _histories(self) -> dict[bytes, list[ev.Event]]:
        connection = await asyncpg.connect(self._dsn)
        try:
            rows = await connection.fetch("select run_id, body from perdure.history order by run_id, seq")
        finally:
            await connection.close()
        found: dict[bytes, list[ev.Event]] = defaultdict(list)
        for row in rows:
            found[bytes(row["run_id"].bytes)] += decode_events(row["body"])
        return found


def _conversation(started: ev.Event) -> str:
    assert isinstance(started, ev.RunStarted)
    return str(msgspec.json.decode(started.input)["conversation"])


def _recorded_calls(history: list[ev.Event]) -> int:
    seqs = {
        e.first + n
        for e in history
        if isinstance(e, ev.TasksScheduled) and e.name == MODEL_TASK
        for n in range(len(e.inputs))
    }
    return sum(len(seqs.intersection(e.seqs)) for e in history if isinstance(e, ev.TasksSucceeded))


def check_calls(calls: Calls, recorded_at_kills: list[Counter[tuple[str, int]]], killed: set[int], turns: int) -> int:
    """Every call is either the one that is recorded, or was in flight in a process that was killed. Returns how many were repeated."""
    made = calls.made()
    last: dict[str, int] = defaultdict(int)
    for conversation, turn, _ in made:
        assert turn in (last[conversation], last[conversation] + 1), (
            f"{conversation} went back from turn {last[conversation]}"
        )
        last[conversation] = turn
    pids: dict[tuple[str, int], list[int]] = defaultdict(list)
    for conversation, turn, pid in made:
        pids[conversation, turn].append(pid)
    assert pids.keys() == {(conversation, turn) for conversation in last for turn in range(turns + 1)}
    for key, callers in pids.items():
        assert len(callers) == len(set(callers)), f"a process called the model twice for {key}: {callers}"
        assert set(callers[:-1]) <= killed, f"{key} was repeated although its process lived: {callers}"
    final = calls.counts()
    for at_kill in recorded_at_kills:
        assert {key: final[key] for key in at_kill} == at_kill, "a recorded call was made again"
    return len(made) - len(pids)


FORGED = {
    "in flight when its process was killed": ("c0 0 1\nc0 0 2\nc0 1 2\n", ""),
    "of a turn that is over": ("c0 0 1\nc0 1 1\nc0 0 2\n", "went back"),
    "of a process that lived": ("c0 0 2\nc0 0 1\nc0 1 2\n", "its process lived"),
    "twice in a process": ("c0 0 1\nc0 0 1\nc0 1 2\n", "twice"),
    "after it was recorded": ("c0 0 1\nc0 1 1\nc0 1 2\n", "made again"),
}


@pytest.mark.parametrize(("lines", "complaint"), FORGED.values(), ids=FORGED)
def test_the_check_notices_a_call_that_was_made_again(lines: str, complaint: str, tmp_path: Path) -> None:
    calls = Calls(tmp_path / "calls")
    calls.file.write_text(lines)
    at_kill = Counter({("c0", 1): 1}) if complaint == "made again" else Counter[tuple[str, int]]()
    if not complaint:
        assert check_calls(calls, [at_kill], {1}, 1) == 1
        return
    with pytest.raises(AssertionError, match=complaint):
        check_calls(calls, [at_kill], {1}, 1)


class EngineProcess:
    """An engine and its worker. It is idle until it begins."""

    def __init__(self, dsn: str, calls: Calls, log: Path) -> None:
        self._log = log
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), dsn, str(TURNS)],
                env={**os.environ, CALLS: str(calls.file)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def begin(self, conversations: int) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{conversations}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n", self._log.read_text()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


async def moment(n: int, calls: Calls, records: Records, randomness: random.Random) -> None:
    """When to kill: in turn just after a model call was recorded, and at any moment of a call."""
    if n % 2 == 0:
        before = sum((await records.turns()).values())

        async def one_more() -> bool:
            return sum((await records.turns()).values()) > before

        await until(one_more, "another model call is recorded", 30)
    else:
        before = len(calls.made())
        await until(lambda: len(calls.made()) > before, "the model is called", 30)
        await busy(randomness.uniform(0, 0.3))


async def recorded_calls(calls: Calls, records: Records) -> Counter[tuple[str, int]]:
    """How often the model was called for each turn that is recorded. Records first: what is recorded later is not of interest."""
    turns = await records.turns()
    counts = calls.counts()
    return Counter({(c, turn): counts[c, turn] for c, number in turns.items() for turn in range(number)})


@pytest.mark.usefixtures("processes")
async def test_engines_are_killed_and_no_recorded_model_call_is_repeated(dsn: str, tmp_path: Path) -> None:
    print(f"\nPERDURE_CRASH_SEED={SEED} PERDURE_AGENT_KILLS={KILLS}")
    randomness, calls, records, log = random.Random(SEED), Calls(tmp_path / "calls"), Records(dsn), tmp_path / "log"
    killed: set[int] = set()
    at_kills: list[Counter[tuple[str, int]]] = []
    with ExitStack() as stack:

        def process() -> EngineProcess:
            made = EngineProcess(dsn, calls, log)
            stack.callback(made.close)
            return made

        following = process()
        for n in range(KILLS):
            one, following = following, process()  # the next one imports its modules while this one works
            await asyncio.to_thread(one.begin, 0 if n else CONVERSATIONS)
            await moment(n, calls, records, randomness)
            os.kill(one.process.pid, signal.SIGKILL)
            one.process.wait()
            killed.add(one.process.pid)
            assert not await records.ends(), "the conversations ended before the last kill; give them more turns"
            at_kills.append(await recorded_calls(calls, records))
        await asyncio.to_thread(following.begin, 0)

        async def all_ended() -> bool:
            return len(await records.ends()) == CONVERSATIONS

        await until(all_ended, "the conversations end", 60)
    answer = f'"turn {TURNS} sums to {sum(range(TURNS))}"'.encode()
    assert [e.result for e in await records.ends() if isinstance(e, ev.RunSucceeded)] == [answer] * CONVERSATIONS, (
        log.read_text()
    )
    repeated = check_calls(calls, at_kills, killed, TURNS)
    print(f"{KILLS} kills, {len(calls.made())} calls, {repeated} of them repeated")
    assert repeated <= KILLS * CONVERSATIONS
    assert set((await records.turns()).values()) == {TURNS + 1}


@contextmanager
def worker_process(address: str, calls: Calls) -> Iterator[Program]:
    words = ("worker", "tests.e2e.harness.agent_kills", "--server", address)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "GRPC_VERBOSITY": "NONE",
    }
    with started(*words, cwd=ROOT, **environment, **{CALLS: str(calls.file)}) as program:
        program.until("connected")
        yield program


@pytest.mark.usefixtures("processes")
async def test_workers_of_a_server_are_killed_and_no_recorded_model_call_is_repeated(dsn: str, tmp_path: Path) -> None:
    randomness, calls, records = random.Random(SEED), Calls(tmp_path / "calls"), Records(dsn)
    killed: set[int] = set()
    at_kills: list[Counter[tuple[str, int]]] = []
    with ExitStack() as stack:
        running = await asyncio.to_thread(stack.enter_context, server(dsn, tmp_path, "--auth", "open"))
        async with Client(running.grpc) as client:
            handle = await client.start(agent_kills.converse, "c0", WORKER_TURNS)
            for n in range(WORKER_KILLS):
                with ExitStack() as inner:
                    program = await asyncio.to_thread(inner.enter_context, worker_process(running.grpc, calls))
                    await moment(n, calls, records, randomness)
                    os.kill(program.process.pid, signal.SIGKILL)
                    program.process.wait()
                    killed.add(program.process.pid)
                at_kills.append(await recorded_calls(calls, records))
            await asyncio.to_thread(stack.enter_context, worker_process(running.grpc, calls))
            assert await handle.result("3m") == f"turn {WORKER_TURNS} sums to {sum(range(WORKER_TURNS))}"
    check_calls(calls, at_kills, killed, WORKER_TURNS)
