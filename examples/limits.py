"""How many at a time, how many per time, who goes first: what tasks and workflows say about it, and starts that begin later or only once.

    python examples/limits.py

Every limit is kept by the database: it holds over all processes together, and a process that dies gives back what it held.
"""

import asyncio
import time
from collections import Counter

from perdure import Debounce, Dedup, Limit, Perdure, RateLimit, task, wf, workflow

busy: Counter[str] = Counter()
peak: Counter[str] = Counter()
begun: list[str] = []
calls: list[float] = []


@task(limit=Limit(2, by="customer"))
async def export(customer: str, part: int) -> None:
    busy[customer] += 1
    peak[customer] = max(peak[customer], busy[customer])
    await asyncio.sleep(0.05)
    busy[customer] -= 1


@workflow
async def export_all(customers: list[str]) -> None:
    await asyncio.gather(*(export(c, part) for c in customers for part in range(5)))


@task(rate=RateLimit(20, per="1s", key="mail", burst=1))
async def send(n: int) -> None:
    calls.append(time.monotonic())


@workflow
async def newsletter(readers: int) -> None:
    await wf.map(send, range(readers))


@task(limit=Limit(1, key="press"))
async def print_page(name: str) -> None:
    begun.append(name)
    await asyncio.sleep(0.05)


@workflow
async def press() -> None:
    first = print_page("first")
    await asyncio.sleep(0.5)
    rest = [print_page(f"page {n}") for n in range(3)]
    await asyncio.gather(first, *rest, print_page.options(priority=10)("urgent"))


@workflow
async def index(document: str) -> str:
    return f"indexed {document!r}"


@workflow
async def ingest(events: list[str]) -> str:
    return f"{len(events)} events: {' '.join(events)}"


async def main() -> None:
    async with Perdure():
        await export_all.run(["ada", "grace"])
        print(f"at most two exports at a time for each customer: {dict(sorted(peak.items()))}")

        await newsletter.run(20)
        print(f"20 mails at 20 a second took a second, at least: {calls[-1] - calls[0] > 0.8}")

        await press.run()
        print(f"the urgent page did not wait for all the others: {begun.index('urgent') < 4}")

        typed = [await index.options(debounce=Debounce("300ms", key="doc-1")).start(t) for t in ("d", "dr", "draft")]
        print(f"three starts, {len({h.id for h in typed})} run: {await typed[0].result()}")

        batch = ingest.batch(key="eu", size=3, max_delay="10s")
        added = [await batch.add(event) for event in ("a", "b", "c")]
        print(f"three items, {len({h.id for h in added})} run: {await added[0].result()}")

        nightly = [await index.options(dedup=Dedup("2026-11-15", within="1d")).start(t) for t in ("night", "again")]
        print(f"two starts under one key, {len({h.id for h in nightly})} run: {await nightly[1].result()}")


if __name__ == "__main__":
    asyncio.run(main())
