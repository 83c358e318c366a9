"""One engine in a process of its own: starts runs, executes them, and tells its counters on stdout until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # for `tests`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `harness`

from harness import bugs
from perdure import EngineSettings, Perdure
from perdure.core.errors import PerdureError
from perdure.core.placement import Placement
from perdure.engine.commits.policy import CommitPolicy
from perdure.testing.ledger import Starts

WAVE = 20


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--dsn", required=True)
    p.add_argument("--starts", required=True)
    p.add_argument("--target", type=int, default=0, help="start runs until this many are acknowledged by anybody")
    p.add_argument("--until", default="", help="start runs until this file exists")
    p.add_argument("--shapes", default="", help="only these shapes, by number")
    p.add_argument("--lease", type=float, default=2.0)
    p.add_argument("--idle", type=float, default=1.0, help="a run that waits this long leaves memory")
    p.add_argument("--slots", type=int, default=50)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--pause", type=float, default=0.0, help="seconds between waves of starts")
    p.add_argument("--bug", default="")
    return p.parse_args()


def acknowledged(path: str) -> int:
    with open(path, "ab+") as file:
        file.seek(0)
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


async def start_runs(args: argparse.Namespace) -> None:
    from harness import flows

    starts = Starts(args.starts)
    randomness = random.Random(args.seed)
    shapes = [int(s) for s in args.shapes.split(",")] if args.shapes else list(range(flows.SHAPES))

    async def one() -> None:
        run_id = await flows.start_one(randomness.choice(shapes), randomness.randrange(1000))
        starts.acknowledged(run_id)
        if randomness.random() < 0.2:
            try:
                await flows.go.send(run_id, "go")
            except PerdureError:
                pass  # ended already, or the database is away; nobody depends on it

    def left() -> int:
        if args.until:
            return 0 if Path(args.until).exists() else WAVE
        return max(0, args.target - acknowledged(args.starts))

    while n := left():
        answers = await asyncio.gather(*(one() for _ in range(min(WAVE, n))), return_exceptions=True)
        for e in answers:
            if isinstance(e, BaseException):
                print(json.dumps({"start_failed": f"{type(e).__name__}: {e}"}), flush=True)
        await asyncio.sleep(args.pause)


async def main() -> None:
    args = parse()
    bugs.plant(args.bug)
    from harness import flows  # noqa: F401  (defines what this engine serves)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = EngineSettings(
        lease_s=args.lease,
        heartbeat_s=args.lease / 4,
        placement=Placement(idle_s=args.idle),
        close_grace_s=5.0,
        commit=CommitPolicy(lazy_us=10_000),  # more commits, hence more moments to be hit in
    )
    async with Perdure(args.dsn, settings=settings, slots=args.slots) as client:
        starting = asyncio.create_task(start_runs(args))

        def tell(**more: object) -> None:
            runs = len(client.engine.runs)
            line = {
                "pid": os.getpid(),
                "runs": runs,
                "starting": not starting.done(),
                **client.engine.counters.as_dict(),
                **more,
            }
            print(json.dumps(line), flush=True)

        tell(ready=True)
        while not stop.is_set():
            try:
                async with asyncio.timeout(0.2):
                    await stop.wait()
            except TimeoutError:
                tell()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        tell()


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    logging.getLogger("asyncpg").setLevel(logging.ERROR)  # it complains at length whenever the database is killed
    asyncio.run(main())
