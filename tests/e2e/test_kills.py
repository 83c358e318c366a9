"""Servers, workers, engines and applications are killed at random while ten workloads run on one database; each workload has its own invariants.

PERDURE_KILLS_SEED=… PERDURE_KILLS_S=120 uv run pytest -s tests/e2e/test_kills.py
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from unittest import mock

from harness.forked_servers import ForkedServers
from harness.storm import LEASE_S, SERVERS, Storm, run_storm
from harness.workloads import all_workloads

from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import migrate

SEED = int(os.environ.get("PERDURE_KILLS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
SECONDS = float(os.environ.get("PERDURE_KILLS_S", "20"))


async def test_random_kills_under_load_keep_all_invariants(
    durable_cluster: Callable[..., PrivateCluster], tmp_path: Path
) -> None:
    print(f"\nPERDURE_KILLS_SEED={SEED} PERDURE_KILLS_S={SECONDS:g}")
    async with AsyncExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ))
        dsn = await asyncio.to_thread(durable_cluster(settings={"max_connections": "300"}).start)
        await migrate(dsn)
        servers = ForkedServers(tmp_path, dsn, SERVERS, lease_s=LEASE_S)
        await asyncio.to_thread(stack.enter_context, servers.nursery)
        fleet = stack.enter_context(servers)
        storm = Storm(fleet, SEED, SECONDS, stack)
        seen = await run_storm(storm, all_workloads())
    print(f"{storm.kills.total()} kills {dict(storm.kills)}")
    for name, text in seen.items():
        print(f"{name}: {text}")
    failed = [f"--- {name}\n{text}" for name, texts in storm.failures.items() for text in texts]
    assert not failed, f"PERDURE_KILLS_SEED={SEED}: {', '.join(storm.failures)} failed\n" + "\n".join(failed)
