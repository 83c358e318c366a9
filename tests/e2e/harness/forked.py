"""A web application that is killed at the steps of its requests, and at random."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException

from harness.storm import Storm, Target
from tests.fakes.killed_forks import KilledFork, Nursery

AT_RANDOM = "at random"
RANDOMS = 3
"""Kills at random, for one at each step."""
ANSWER_S = STEP_S = 120.0
PAUSE_S = 0.1
"""Of each client, between two requests."""


class Forked(Target):
    """Killed at each of its steps in turn, in an order that the seed decides."""

    every_s = (0.5, 1.5)
    stop_signal: signal.Signals | None = None
    """Asked to stop by it, the application ends by it and without an error. None: the application does not know how to stop."""

    def __init__(self, storm: Storm, name: str, nursery: Nursery, steps: Sequence[str], random_s: float) -> None:
        super().__init__()
        self.name, self._storm, self._nursery, self._steps, self._random_s = name, storm, nursery, steps, random_s
        self._plan = self._dealt(random.Random(f"{storm.seed}:{name}:steps"))
        self._step = next(self._plan)
        self._fork: KilledFork
        self.done: Counter[str] = Counter()

    def _dealt(self, randomness: random.Random) -> Iterator[str]:
        while True:
            yield from randomness.sample([*self._steps, *[AT_RANDOM] * RANDOMS], len(self._steps) + RANDOMS)

    @property
    def is_hit(self) -> bool:
        """At each step, and at random."""
        return self.done.keys() == {*self._steps, AT_RANDOM}

    async def start(self) -> None:
        nth = random.Random(f"{self._storm.seed}:{self.done}").randint(1, 4)
        await asyncio.to_thread(self._serve, self._step, nth)

    def _serve(self, step: str, nth: int) -> None:
        self._fork = self._nursery.fork({}, pause_at=step, nth=nth)
        self._fork.wait_for("ready")

    async def strike(self, randomness: random.Random) -> None:
        await asyncio.to_thread(self._reach, randomness.uniform(0, self._random_s))
        await self.kill()
        self.done[self._step] += 1
        self._step = next(self._plan)
        await self.start()

    def _reach(self, seconds: float) -> None:
        if self._step == AT_RANDOM:
            assert self._fork.news(seconds) is None
        else:
            self._fork.wait_for(self._step, STEP_S)

    async def kill(self) -> None:
        assert await asyncio.to_thread(self._fork.kill) == signal.SIGKILL
        self._storm.killed(self.name, self._fork.pid)

    async def restore(self) -> None:
        await self.kill()
        await asyncio.to_thread(self._serve, "", 1)

    async def stop(self) -> None:
        number = self.stop_signal or signal.SIGKILL
        assert await asyncio.to_thread(self._fork.kill, number) == number


class Visitor(threading.Thread):
    """A client that makes requests until it is stopped."""

    def __init__(self, number: int, port: int) -> None:
        super().__init__(daemon=True)
        self.number, self.port, self.random = number, port, random.Random(number)
        self.stopped = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.wait(PAUSE_S):
                self.visit()
        except BaseException as error:
            self.error = error

    def visit(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.stopped.set()
        self.join()
        assert self.error is None, self.error


def send_request(port: int, method: str, path: str, body: str, headers: dict[str, str]) -> tuple[int | None, bytes]:
    """Status and body; (None, b"") if the server dies before it has answered."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (ConnectionError, HTTPException):
        return None, b""
    finally:
        connection.close()
