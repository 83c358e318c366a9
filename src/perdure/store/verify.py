"""Reads a database for core/invariants.py, page by page.

A page is some runs with everything about them, read in one REPEATABLE READ snapshot; the next page has a new one. So each run is seen
whole, a live system can be verified, and no transaction stays open long enough to hold up vacuum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.errors import InvalidInput
from perdure.core.events import Recorded
from perdure.core.invariants import (
    EXAMPLES_MAX,
    INVARIANTS,
    LEDGER_ONLY,
    REST_ONLY,
    STARTS_ONLY,
    Findings,
    LedgerLine,
    RunFold,
    StoredRun,
    StoredTask,
    Tally,
    check_executions,
)
from perdure.store.connections import connect
from perdure.store.queries import queries
from perdure.wire.codec import decode_events, decode_row

PAGE_RUNS: Final = 200
PAGE_TASKS: Final = 5_000
PAGE_STARTS: Final = 1_000
HISTORY_FETCHED: Final = 100
"""Rows of history in memory at a time: histories can be larger than that."""
_NOTHING: Final = bytes(16)


async def verify(
    dsn: str,
    *,
    ledger: Iterator[LedgerLine] | None = None,
    names: frozenset[str] = frozenset(),
    starts: Iterable[str] | None = None,
    at_rest: bool = False,
) -> list[Tally]:
    """Check every invariant there is material for.

    `ledger` comes sorted by run and time; `names` are the tasks that write it. `starts` are acknowledged run ids. `at_rest` says that
    nothing is going on any more, so that leftovers and unfinished runs count.
    """
    left_out = (
        (frozenset() if ledger is not None else LEDGER_ONLY)
        | (frozenset() if starts is not None else STARTS_ONLY)
        | (frozenset() if at_rest else REST_ONLY)
    )
    findings = Findings(INVARIANTS.keys() - left_out)
    connection = await connect(dsn)
    try:
        reader = _Reader(connection, findings, _ByRun(ledger), names)
        await reader.runs()
        await reader.orphan_tasks()
        if starts is not None:
            await reader.starts(starts)
        if at_rest:
            await reader.leftovers()
    finally:
        await connection.close(timeout=10)
    return list(findings.tallies.values())


class _ByRun:
    """The sorted ledger beside the runs, which are read in the same order."""

    def __init__(self, lines: Iterator[LedgerLine] | None) -> None:
        self._groups = groupby(lines or iter(()), key=lambda x: x.run)
        self._next = self._take()

    def _take(self) -> tuple[str, list[LedgerLine]] | None:
        found = next(self._groups, None)
        return (found[0], list(found[1])) if found is not None else None

    def up_to(self, run: str) -> Iterator[tuple[str, list[LedgerLine]]]:
        """Groups not after this run."""
        while self._next is not None and self._next[0] <= run:
            yield self._next
            self._next = self._take()

    def rest(self) -> Iterator[tuple[str, list[LedgerLine]]]:
        return self.up_to("~")


class _Page:
    """Some runs with all their rows."""

    def __init__(self, run_ids: list[bytes], findings: Findings) -> None:
        self.folds = {r: RunFold(r, findings) for r in run_ids}
        self.runs: defaultdict[bytes, list[StoredRun]] = defaultdict(list)
        self.tasks: defaultdict[bytes, list[StoredTask]] = defaultdict(list)
        self.queued: defaultdict[bytes, list[int]] = defaultdict(list)
        self.state: defaultdict[bytes, dict[str, bytes]] = defaultdict(dict)
        self.active_children: frozenset[bytes] = frozenset()


class _Reader:
    def __init__(self, connection: Any, findings: Findings, ledger: _ByRun, names: frozenset[str]) -> None:
        self._c, self._findings, self._ledger, self._names = connection, findings, ledger, names
        self._q = queries()

    async def runs(self) -> None:
        after = _NOTHING
        while True:
            async with self._c.transaction(isolation="repeatable_read", readonly=True):
                run_ids = [r["run_id"] for r in await self._c.fetch(self._q["verify_page"], after, PAGE_RUNS)]
                if not run_ids:
                    break
                page = await self._read(run_ids)
            self._judge(page)
            after = run_ids[-1]
        for run, lines in self._ledger.rest():
            self._unknown(run, lines)

    async def _read(self, run_ids: list[bytes]) -> _Page:
        page = _Page(run_ids, self._findings)
        for r in await self._c.fetch(self._q["verify_runs"], run_ids):
            page.runs[r["run_id"]].append(
                StoredRun(r["active"], r["status"], r["epoch"], r["events"], r["stuck"], r["due"])
            )
        # A cursor by name: those of the driver need prepared statements, which a transaction-pooling proxy mixes up.
        await self._c.execute(f"declare verified_history no scroll cursor for {self._q['verify_history']}", run_ids)
        while rows := await self._c.fetch(f"fetch {HISTORY_FETCHED} from verified_history"):
            for r in rows:
                self._history_row(page.folds[r["run_id"]], r)
        await self._c.execute("close verified_history")
        for run_id, fold in page.folds.items():
            if fold.retries and not fold.broken:
                fold.again(await self._whole(run_id))
        await self._fires(page)
        lowest, highest = run_ids[0][:8] + bytes(8), run_ids[-1][:8] + b"\xff" * 8
        for r in await self._c.fetch(self._q["verify_tasks"], lowest, highest, run_ids):
            run_id, *fields = r.values()
            page.tasks[run_id].append(StoredTask(*fields))
        for r in await self._c.fetch(self._q["verify_queued"], run_ids):
            page.queued[r["run_id"]].append(r["seq"])
        for r in await self._c.fetch(self._q["verify_state"], run_ids):
            page.state[r["run_id"]][r["name"]] = r["hash"]
        children = [c for fold in page.folds.values() for c in fold.state.children.values()]
        if children and 21 in self._findings:
            page.active_children = frozenset(
                r["run_id"] for r in await self._c.fetch(self._q["verify_active"], children)
            )
        return page

    def _history_row(self, fold: RunFold, r: Any) -> None:
        try:
            events = decode_events(r["body"])
        except (InvalidInput, msgspec.DecodeError) as e:
            fold.unreadable(r["seq"], r["last"], str(e))
        else:
            fold.row(r["seq"], r["last"], r["epoch"], r["at"], events)

    async def _fires(self, page: _Page) -> None:
        """A nominal time names one run. Every run that a schedule started must be the one that its time names."""
        asked = [(run_id, *fold.scheduled) for run_id, fold in page.folds.items() if fold.scheduled is not None]
        if not asked:
            return
        self._findings.examine(15, len(asked))
        columns = [list(column) for column in zip(*asked, strict=True)]
        for r in await self._c.fetch(self._q["verify_fires"], *columns):
            what = f"the schedule {r['name']} started it, and its nominal time belongs to {r['other'] or 'no run'}"
            self._findings.violate(15, ids.text(r["run_id"]), what)

    async def _whole(self, run_id: bytes) -> list[Recorded]:
        rows = await self._c.fetch(self._q["verify_history"], [run_id])
        return [r for row in rows for r in decode_row(row["seq"], row["at"], row["body"])]

    def _judge(self, page: _Page) -> None:
        for run_id, fold in page.folds.items():
            fold.settle(
                page.runs[run_id], page.tasks[run_id], page.queued[run_id], page.state[run_id], page.active_children
            )
            executed: list[LedgerLine] = []
            for run, lines in self._ledger.up_to(fold.text):
                if run == fold.text:
                    executed = lines
                else:
                    self._unknown(run, lines)
            check_executions(fold, page.tasks[run_id], executed, self._names, self._findings)

    def _unknown(self, run: str, lines: list[LedgerLine]) -> None:
        self._findings.violate(1, run, f"executed {lines[0].name} and is not in the database")

    async def orphan_tasks(self) -> None:
        after = _NOTHING
        while rows := await self._c.fetch(self._q["verify_orphan_tasks"], after, PAGE_TASKS):
            for r in rows:
                if r["orphan"]:
                    self._findings.violate(4, ids.text(r["run_id"]), f"task {r['seq']} has a row and its run none")
            after = rows[-1]["id"]

    async def starts(self, starts: Iterable[str]) -> None:
        remaining = iter(starts)
        while page := list(islice(remaining, PAGE_STARTS)):
            wanted = [ids.parse(s) for s in page]
            self._findings.examine(1, len(wanted))
            for r in await self._c.fetch(self._q["verify_known"], wanted):
                if r["times"] != 1:
                    what = f"acknowledged and found {r['times']} times"
                    self._findings.violate(1, ids.text(r["run_id"]), what)

    async def leftovers(self) -> None:
        row = await self._c.fetchrow(self._q["verify_leftovers_examined"])
        self._findings.examine(17, row["examined"])
        for r in await self._c.fetch(self._q["verify_leftovers"], EXAMPLES_MAX * 20):
            self._findings.violate(17, ids.text(r["run_id"]), f"{r['kind']}: {r['what']}")
