"""A workflow and a flow whose tasks run on a Ray cluster; large values pass between them by reference.

    pip install 'perdure[ray]'
    ray start --head
    python examples/on_ray/run.py

PERDURE_EXECUTOR_RAY_ADDRESS names a cluster elsewhere. Its nodes need Perdure; this directory is copied to them.
"""

import asyncio
import os
from pathlib import Path

from simulation import paths

from perdure import Perdure, flow

HERE = Path(__file__).parent
os.environ.setdefault("PERDURE_EXECUTOR_RAY_WORKING_DIR", str(HERE))


async def main() -> None:
    async with Perdure(executors=["ray"]) as app:
        table = await paths.run([1, 2], 20_000)
        print(f"{table.name} has {table.size:,} bytes")
        first = (await table.aread_text()).splitlines()[0]
        print(f"both paths begin at {first}")

        await app.deploy((HERE / "extremes.yaml").read_text())
        print(f"path 1: {await flow('extremes').run(seed=1, steps=20_000)}")


if __name__ == "__main__":
    asyncio.run(main())
