"""A client of some version that starts runs all the time: `steady.py ADDRESSES STARTS PREFIX PER_SECOND`, until SIGTERM.

Each start has a key and is asked again under it until it is acknowledged, as a careful program would. One line of JSON per acknowledged
start; the last line says how many there were.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
import time
from typing import Any

from harness import flows
from perdure import Client, flow
from perdure.errors import PerdureError
from perdure.testing.ledger import Starts
from tests.fakes.waiting import busy

TRIES_S = 90.0


def shape(number: int, key: str) -> Any:
    starts = (
        lambda: flows.chain.options(key=key, on_conflict="attach").bind(2 + number % 4),
        lambda: flows.spread.options(key=key, on_conflict="attach").bind(3 + number % 5),
        lambda: flows.nap.options(key=key, on_conflict="attach").bind(0.5 + number % 40 / 10),
        lambda: flows.family.options(key=key, on_conflict="attach").bind(2),
        lambda: flows.listening.options(key=key, on_conflict="attach").bind(8.0),
        lambda: flows.relay.options(key=key, on_conflict="attach").bind(number % 3),
        lambda: flows.lingering.options(key=key, on_conflict="attach").bind(0.5 + number % 10 / 10),
        lambda: flow("steady-dag").options(key=key, on_conflict="attach").bind(),
        lambda: flow("steady-graph").options(key=key, on_conflict="attach").bind(),
    )
    return starts[number % len(starts)]()


class Load:
    def __init__(self, client: Client, starts: Starts, prefix: str) -> None:
        self._client, self._starts, self._prefix = client, starts, prefix
        self.acknowledged = self.asked_again = self.given_up = 0

    async def one(self, number: int) -> None:
        began = time.monotonic()
        tries = 0
        while time.monotonic() - began < TRIES_S:
            tries += 1
            try:
                handle = await self._client.start(shape(number, f"{self._prefix}{number}"), timeout="10s")
            except PerdureError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                self.asked_again += 1
                await busy(0.05)
                continue
            self._starts.acknowledged(handle.id)
            self.acknowledged += 1
            at = time.monotonic()
            print(json.dumps({"number": number, "at": at, "took": at - began, "tries": tries}), flush=True)
            if number % 9 == 4:
                await self._signal(handle.id)
            return
        self.given_up += 1

    async def _signal(self, run_id: str) -> None:
        try:
            await flows.go.send(run_id, "go")
        except PerdureError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)


async def main(addresses: str, starts: str, prefix: str, per_second: str) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with Client(addresses) as client, asyncio.TaskGroup() as group:
        load = Load(client, Starts(starts), prefix)
        for number in itertools.count():
            if over.is_set():
                break
            group.create_task(load.one(number))
            await busy(1 / float(per_second))
    print(
        json.dumps(
            {
                "acknowledged": load.acknowledged,
                "asked_again": load.asked_again,
                "given_up": load.given_up,
                "asked": number,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
