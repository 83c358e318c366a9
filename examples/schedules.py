"""A workflow that starts by itself: every second, without overlap, with a pause and a backfill.

    python examples/schedules.py

A nominal time starts one run, whichever process fires it. The schedule would go on when this program ends; here it is deleted.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from perdure import Perdure, Schedule, task, wf, workflow


@task
async def measure() -> int:
    return 21


@workflow
async def reading(room: str) -> str:
    meant_for = wf.nominal_time()
    assert meant_for is not None
    return f"{room}: {await measure()} degrees at second {meant_for.second}"


every_second = Schedule("every-second", reading.bind("kitchen"), every="1s", overlap="skip")


async def main() -> None:
    async with Perdure(schedules=[every_second]) as perdure:
        await asyncio.sleep(4)
        await every_second.pause("that will do")
        fires = await every_second.fires()
        assert len(fires) >= 3
        apart = {later.nominal - earlier.nominal for later, earlier in pairwise(fires)}
        print(f"3 readings or more, {' and '.join(str(d) for d in apart)} apart")
        run_id = next(f.run_id for f in fires if f.status == "success")
        assert run_id is not None
        print(await (await perdure.get(run_id, workflow=reading)).result())

        handle = await every_second.trigger()
        print(f"by hand, though it is paused: {await handle.result()}")

        until = datetime.now(UTC) - timedelta(hours=1)
        planned = await every_second.backfill(until - timedelta(seconds=5), until, dry_run=True)
        made = await every_second.backfill(until - timedelta(seconds=5), until)
        again = await every_second.backfill(until - timedelta(seconds=5), until)
        print(f"backfill of an hour ago: {len(planned)} planned, {sum(not t.exists for t in made)} started")
        print(f"once more: {sum(not t.exists for t in again)} started")
        await every_second.delete()


if __name__ == "__main__":
    asyncio.run(main())
