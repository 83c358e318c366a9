"""Ten keys with a limit of 3 each, under load: no key ever has more than 3 at work, and no slot outlives its holder."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from harness import limited
from harness.fleet import count
from harness.storm import Storm, Target, Workload
from perdure.core.errors import PerdureError
from tests.fakes.waiting import until

TASKS_PER_RUN = 200
RUNS_AT_ONCE = 3
ORPHANED = """select count(*) from perdure.flow_control_slot s where not exists (
  select from perdure.task_queue t join perdure.engine_session e on e.id = t.owner where t.id = s.holder and e.expires_at > now())"""


class Limits(Workload):
    name = "limits"
    serves = ("harness.limited",)

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        self._started, self._intervals = 0, storm.directory / "intervals.jsonl"
        os.environ["PERDURE_TEST_INTERVALS"] = str(self._intervals)
        return ()

    async def load(self, storm: Storm) -> None:
        """As much as keeps the line of a key from running dry; while the last run works, slots are looked at."""
        waiting: set[asyncio.Task[None]] = set()
        while not storm.calm.is_set():
            try:
                first = self._started * TASKS_PER_RUN
                handle = await storm.client.start(limited.limited_load, first, TASKS_PER_RUN)
                self._started += 1
                waiting.add(asyncio.create_task(_ended(handle)))
            except PerdureError:
                await storm.passes(0.2)
            while len(waiting := {t for t in waiting if not t.done()}) >= RUNS_AT_ONCE and not storm.calm.is_set():
                await storm.passes(0.2)
        try:
            await until(lambda: _only_living_sessions(storm), "the sessions of killed engines are gone")
            await until(lambda: _no_slot_without_a_living_holder(storm.dsn), within_s=1.5)
        finally:
            for t in waiting:
                t.cancel()

    async def check(self, storm: Storm) -> str:
        assert await count(storm.dsn, "select count(*) from perdure.flow_control_slot") == 0
        failed = "select count(*) from perdure.run where workflow = 'limited_load' and status <> 'success'"
        assert await count(storm.dsn, failed) == 0
        peaks, executions = _sweep(self._intervals, storm.died)
        assert max(peaks.values()) == limited.LIMIT, {k: v for k, v in peaks.items() if v > limited.LIMIT}
        assert len(peaks) == limited.KEYS
        assert executions >= self._started * TASKS_PER_RUN
        assert storm.kills["server"] and storm.kills["worker"]
        return f"{self._started} runs, {executions} executions, highest {max(peaks.values())}"


async def _ended(handle: object) -> None:
    try:
        await handle.result()  # type: ignore[attr-defined]
    except PerdureError:
        pass


async def _only_living_sessions(storm: Storm) -> bool:
    return await count(storm.dsn, "select count(*) from perdure.engine_session") == storm.engines


async def _no_slot_without_a_living_holder(dsn: str) -> bool:
    """Every slot belongs to an attempt of an engine that is alive."""
    return not await count(dsn, ORPHANED)


def _sweep(path: Path, died: dict[int, float]) -> tuple[dict[int, int], int]:
    """The most that was at work at once, per key. An execution without an end ended with its process."""
    begun: dict[str, dict[str, float]] = {}
    moments: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        e = json.loads(line)
        if e["phase"] == "begin":
            begun[e["me"]] = e
        else:
            b = begun.pop(e["me"])
            moments[int(b["key"])] += [(b["at"], 1), (e["at"], -1)]
    for b in begun.values():
        moments[int(b["key"])] += [(b["at"], 1), (died[int(b["pid"])], -1)]
    peaks: dict[int, int] = {}
    for key, changes in moments.items():
        at_work = highest = 0
        for _, change in sorted(changes):  # an end and a begin of one moment: the end first
            at_work += change
            highest = max(highest, at_work)
        peaks[key] = highest
    return peaks, sum(len(m) for m in moments.values()) // 2
