"""An engine in a process of its own that exports and removes ended runs, and says "done" when there is nothing left.

With --held it rests between two pieces of work until a line `go` comes, and after a line `hold`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # for `tests`

from perdure import EngineSettings, Perdure
from perdure.engine.services import retention as service
from tests.fakes.waiting import until

WITHIN_S = 86_400.0


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--dsn", required=True)
    p.add_argument("--url", required=True)
    p.add_argument("--format", default="jsonl")
    p.add_argument("--share", type=float, default=1.0)
    p.add_argument("--lease", type=float, default=15.0)
    p.add_argument("--part-runs", type=int, default=0)
    p.add_argument("--page-runs", type=int, default=0)
    p.add_argument("--held", action="store_true")
    return p.parse_args()


async def follow(gate: asyncio.Event) -> None:
    """Lines of stdin."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip() == "go":
            gate.set()
        else:
            gate.clear()


async def main() -> None:
    args = parse()
    gate = asyncio.Event()
    if args.held:
        reader = asyncio.create_task(follow(gate))
        rest = service.Retention._rest

        async def held(self: service.Retention, took_s: float) -> None:
            await rest(self, took_s)
            await gate.wait()

        service.Retention._rest = held  # type: ignore[method-assign]
    service.EXPORT_PART_RUNS = args.part_runs or service.EXPORT_PART_RUNS  # type: ignore[misc]
    service.EXPORT_PAGE_RUNS = args.page_runs or service.EXPORT_PAGE_RUNS  # type: ignore[misc]
    settings = EngineSettings(
        retention_export=args.url,
        retention_format=args.format,
        retention_share=args.share,
        lease_s=args.lease,
        heartbeat_s=args.lease / 4,
    )
    service.Retention.poll_s = 3_600.0  # it is asked below
    async with Perdure(args.dsn, settings=settings) as client:
        print("ready", flush=True)
        retention = client.engine.retention

        async def is_done() -> bool:
            """A job that was left by an engine which is gone is taken up when its lease has run out."""
            return not await retention.work_once() and not await retention._store.is_busy()

        await until(is_done, within_s=WITHIN_S)
        print("done", flush=True)
    if args.held:
        reader.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main())
