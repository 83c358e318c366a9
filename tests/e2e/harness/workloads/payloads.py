"""Large inputs and results while clients, servers and workers are cut off: no content is lost, doubled or left for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from harness.fleet import count
from harness.storm import Storm, Workload, fetch_rows
from perdure.core.errors import PerdureError
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import references_of
from perdure.engine.payloads import Payloads
from perdure.engine.settings import EngineSettings
from perdure.store.payloads import PostgresPayloads
from perdure.wire.codec import decode_events
from tests.e2e.harness import payload_kills

LARGE = 500_000
"""Characters: more than a payload may have inline, less than a REST request."""
PAUSE_S = 0.5
SWEPT = 1_000
USED = "select count(*) from (select distinct ns, store, sha256 from perdure.payload_use) u"


class LargePayloads(Workload):
    name = "payloads"
    serves = ("tests.e2e.harness.payload_kills",)

    async def load(self, storm: Storm) -> None:
        self._accepted = 0
        while not storm.calm.is_set():
            await asyncio.gather(*(_started(storm, bound) for bound in _bound(self._accepted)))
            self._accepted += 1
            await storm.passes(PAUSE_S)

    async def settle(self, storm: Storm) -> None:
        for n in range(self._accepted):
            same, differs = await _result(storm, f"results-{n}")
            assert same == f"s {payload_kills.LARGE}" and differs.endswith(f" {payload_kills.LARGE}"), (same, differs)
            assert await _result(storm, f"measured-{n}") == LARGE

    async def check(self, storm: Storm) -> str:
        named = "select count(*) from perdure.run where workflow in ('kills.results', 'kills.measured')"
        assert await count(storm.dsn, named) == 2 * self._accepted, "one run for each key"
        checked = await check_references(storm.dsn)
        stored, used = await count(storm.dsn, "select count(*) from perdure.payload"), await count(storm.dsn, USED)
        async with stored_payloads(storm.dsn) as payloads:
            await payloads.sweep(SWEPT)
            assert await count(storm.dsn, "select count(*) from perdure.payload") == stored, "it may still be reported"
            await fetch_rows(storm.dsn, "update perdure.payload set check_at = check_at - interval '1 day 1 minute'")
            await payloads.sweep(SWEPT)
        assert await count(storm.dsn, "select count(*) from perdure.payload") == used == await count(storm.dsn, USED)
        assert await check_references(storm.dsn) == checked
        return f"{2 * self._accepted} runs, {checked} references, {stored} contents, {stored - used} of them unused"


def _bound(n: int) -> list[Any]:
    return [
        payload_kills.results.options(key=f"results-{n}", on_conflict="attach").bind(),
        payload_kills.measured.options(key=f"measured-{n}", on_conflict="attach").bind(str(n % 10) * LARGE),
    ]


async def _started(storm: Storm, bound: Any) -> None:
    """Repeated under its key until it is accepted."""
    while True:
        try:
            await storm.client.start(bound)
            return
        except (PerdureError, OSError):
            await storm.passes(0.2)


async def _result(storm: Storm, key: str) -> Any:
    return await (await storm.client.get(key=key)).result("60s")


@asynccontextmanager
async def stored_payloads(dsn: str) -> AsyncIterator[Payloads]:
    store = PostgresPayloads(dsn)
    await store.open()
    yield Payloads(store, EngineSettings())
    await store.close()


async def check_references(dsn: str) -> int:
    """Every reference of every history can be read. Returns how many there are."""
    checked = 0
    async with stored_payloads(dsn) as payloads:
        for row in await fetch_rows(dsn, "select ns, body from perdure.history"):
            for payload in (p for event in decode_events(row["body"]) for p in payloads_of(event)):
                for reference in references_of(payload):
                    await payloads.of(row["ns"]).transfer.fetch(reference)
                    checked += 1
    return checked
