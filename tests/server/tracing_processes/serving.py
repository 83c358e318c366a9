"""An engine and a worker that serve the queues it is given, until they are told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from perdure import Perdure
from tests.server.tracing_processes import flows


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Perdure(os.environ["PERDURE_DSN"], queues=sys.argv[1:]):
        print("serving", flows.outer.name, flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
