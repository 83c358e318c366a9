"""Stories of messages in any number: `just messages SEED COUNT`."""

from __future__ import annotations

import asyncio
import sys
from time import monotonic

from perdure.store.migrate import migrate
from perdure.store.verify import verify
from tests import shared_server
from tests.messages.engines import engines
from tests.messages.story import told
from tests.messages.tally import Tally

AT_ONCE = 24
STEPS = 30


async def tell(dsn: str, seed: str, numbers: range, tally: Tally, steps: int = STEPS) -> list[str]:
    """What was broken, if anything. `tally` gets what was tried."""
    broken: list[str] = []
    left = iter(numbers)

    async with engines(dsn) as two:

        async def teller() -> None:
            for n in left:
                if (what := await told(two, n, seed, steps, tally)) is not None:
                    broken.append(what)

        await asyncio.gather(*(teller() for _ in range(AT_ONCE)))
    found = [t for t in await verify(dsn) if t.violations]
    return broken + [f"invariant {t.number}, {t.violations} times: {t.examples}" for t in found]


async def main(seed: str, numbers: range) -> int:
    dsn = shared_server.start_shared().create_database("messages")
    await migrate(dsn)
    began_s, tally = monotonic(), Tally()
    broken = await tell(dsn, seed, numbers, tally)
    print("\n\n".join(broken[:20]))
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
