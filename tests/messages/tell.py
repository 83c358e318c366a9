"""Stories of messages in any number: `just messages SEED COUNT`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import chain
from tempfile import TemporaryDirectory
from time import monotonic

from perdure.exports.archive import Archive
from perdure.store.imports import import_exports
from perdure.store.migrate import migrate
from perdure.store.verify import verify
from tests import shared_server
from tests.e2e.harness.aged import days_ago, retain
from tests.messages.engines import engines
from tests.messages.programs import old_reader
from tests.messages.story import Story, is_old, new_story, told
from tests.messages.tally import Tally

AT_ONCE = 24
STEPS = 30
DAYS = 100.5
"""Since the first part of old stories: retention removes their ended runs."""


async def tell(dsn: str, seed: str, numbers: range, tally: Tally, steps: int = STEPS) -> list[str]:
    """What was broken, if anything. `tally` gets what was tried."""
    broken: list[str] = []

    async def each(parts: Iterable[tuple[Story, Callable[[], Awaitable[None]]]]) -> None:
        left = iter(parts)

        async def teller() -> None:
            for story, part in left:
                if (what := await told(story, part())) is not None:
                    broken.append(f"seed {seed}, {what}")
                    print(broken[-1], flush=True)

        await asyncio.gather(*(teller() for _ in range(AT_ONCE)))

    old: list[Story] = []
    if some := [n for n in numbers if is_old(n)]:
        async with days_ago(dsn, DAYS), engines(dsn, old_reader) as two:
            old = [new_story(two, n, seed, tally) for n in some]
            await each((s, partial(s.tell_first, steps // 2)) for s in old)
        old = [s for s in old if s.past]  # the others are broken already
        with TemporaryDirectory() as folder:
            await retain(dsn, retention_export=f"file://{folder}")
            async with engines(dsn) as two:
                await two.move("old", "new")
                for s in old:
                    s.e = two
                await each((s, s.removed) for s in old)
                await import_exports(dsn, Archive(f"file://{folder}"), None)
                await each((s, s.imported) for s in old)
    async with engines(dsn) as two:
        for s in old:
            s.e = two
        fresh = (new_story(two, n, seed, tally) for n in numbers if not is_old(n))
        await each(
            chain(
                ((s, partial(s.tell_second, steps)) for s in old),
                ((s, partial(s.tell, steps)) for s in fresh),
            )
        )
    found = [t for t in await verify(dsn) if t.violations]
    violated = [f"invariant {t.number}, {t.violations} times: {t.examples}" for t in found]
    print("\n".join(violated))
    return broken + violated


async def main(seed: str, numbers: range) -> int:
    dsn = shared_server.start_shared().create_database("messages")
    await migrate(dsn)
    began_s, tally = monotonic(), Tally()
    broken = await tell(dsn, seed, numbers, tally)
    print(tally)
    print(f"{len(numbers)} stories of seed {seed} in {monotonic() - began_s:.0f} s, {len(broken)} broken")
    return int(bool(broken))


if __name__ == "__main__":
    first, _, last = sys.argv[2].rpartition("-")
    try:
        code = asyncio.run(main(sys.argv[1], range(int(first or 0), int(last))))
    finally:
        shared_server.stop_shared()
    raise SystemExit(code)
