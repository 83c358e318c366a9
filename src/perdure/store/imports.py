"""Reads an export back into a database: ids, histories and hashes as they were.

Laws:

1. A page of runs is one transaction: a run is there with all its rows or not at all.
2. A run that is there already, with the same history, is passed over. So an import can be repeated, and two may run at once.
3. A run that is there with another history, or is active, is a conflict: the import ends and says which. Earlier pages stay.
4. Every history is held against its hashes before it is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.errors import Conflict, PayloadCorrupt, PayloadKeyMissing
from perdure.core.retention import Manifest
from perdure.core.retention_limits import IMPORT_RUNS
from perdure.exports.archive import Archive
from perdure.exports.records import ATTEMPT_COLUMNS, LOG_COLUMNS, RUN_COLUMNS, TASK_COLUMNS, RunRows, rows_of
from perdure.exports.writers import read_part
from perdure.store.connections import connect
from perdure.store.queries import execute, fetch, fetch_value, opened, queries

EVENTS_AT_ONCE: Final = 5_000
"""Events of the runs that one transaction writes."""


class Imported(msgspec.Struct):
    """What an import did."""

    exports: int = 0
    runs: int = 0
    present: int = 0
    """Runs that were there already."""
    events: int = 0
    missing_payloads: int = 0
    """Uses of stored content that this database does not have."""


Progress = Callable[[str, Manifest, Imported], None]
"""Called after each part, with the name of the export and what was done so far."""


async def import_exports(
    dsn: str, archive: Archive, keep_days: float | None, *, tell: Progress | None = None, is_dry_run: bool = False
) -> Imported:
    """All exports below an address, oldest first. `keep_days`: how long retention leaves the runs alone; None: for ever."""
    done = Imported()
    connection = await connect(dsn)
    try:
        importer = _Importer(connection, keep_days, done, is_dry_run)
        for folder in await archive.folders():
            manifest = await archive.manifest(folder)
            await importer.namespaces(manifest)
            for part in manifest.parts:
                data = await archive.part(folder, part)
                async for page in _pages(rows_of(record) for record in read_part(data, manifest.format)):
                    await importer.page(page)
                if tell is not None:
                    tell(folder or manifest.name, manifest, done)
            done.exports += 1
    finally:
        await connection.close(timeout=10)
    return done


async def _pages(runs: Iterable[RunRows]) -> AsyncIterator[list[RunRows]]:
    page, events = list[RunRows](), 0
    for one in runs:
        if page and (len(page) >= IMPORT_RUNS or events + one.run["events"] > EVENTS_AT_ONCE):
            yield page
            page, events = [], 0
        page.append(one)
        events += one.run["events"]
    if page:
        yield page


class _Importer:
    def __init__(self, connection: Any, keep_days: float | None, done: Imported, is_dry_run: bool) -> None:
        self._c, self._keep_days, self._done, self._is_dry_run = connection, keep_days, done, is_dry_run
        self._numbers: dict[str, int] = {}

    async def namespaces(self, manifest: Manifest) -> None:
        """The hashes of a history cover the number of its namespace, so a namespace must have the same one here."""
        self._numbers = {r["name"]: r["id"] for r in await fetch(self._c, "export_namespaces")}
        self._wanted = manifest.namespaces

    async def _number(self, name: str, number: int) -> None:
        if name not in self._numbers and not self._is_dry_run:
            if await fetch_value(self._c, "import_namespace", number=number, name=name):
                self._numbers[name] = number
            else:
                self._numbers = {r["name"]: r["id"] for r in await fetch(self._c, "export_namespaces")}
        found = self._numbers.get(name, number if self._is_dry_run else None)
        if found != number:
            taken = next((other for other, n in self._numbers.items() if n == number), None)
            here = (
                f"has number {found}" if found is not None else f"cannot have that number, which is that of {taken!r}"
            )
            raise Conflict(
                f"the namespace {name!r} had number {number} where the runs were exported, and here it {here}. The hashes of histories "
                "cover the number: import into a database where it is free, such as a new one"
            )

    async def page(self, page: list[RunRows]) -> None:
        for name, number in {(one.run["namespace"], one.run["ns"]) for one in page}:
            await self._number(name, number)
        await self._check_keys(page)
        async with self._c.transaction(isolation="read_committed"):
            new = await self._new(page)
            if not self._is_dry_run:
                new = await self._written(new)
        self._done.runs += len(new)
        self._done.events += sum(one.run["events"] for one in new)
        self._done.present += len(page) - len(new)

    async def _check_keys(self, page: list[RunRows]) -> None:
        """What was encrypted is written as it was, because the hashes cover it: the key must be here."""
        lines = [(one, line) for one in page for line in one.history if line.sealed is not None]
        rows = [{"run_id": one.run_id, "last": line.last, "body": line.sealed} for one, line in lines]
        for row, (one, line) in zip(await opened(self._c, queries()["export_history"], rows, {}), lines, strict=True):
            try:
                is_same = row["body"] == line.body
            except (PayloadKeyMissing, PayloadCorrupt) as e:
                raise Conflict(
                    f"the history of run {ids.text(one.run_id)} was exported from a database that encrypts, and cannot be opened in this one: "
                    f"{e}. Import it into the database it comes from, or into a restored copy, with its master keys"
                ) from None
            if not is_same:
                raise _conflict(one, "the events of its record are not those that are encrypted beside them")

    async def _new(self, page: list[RunRows]) -> list[RunRows]:
        known = {r["run_id"]: r for r in await fetch(self._c, "imported_before", run_ids=[one.run_id for one in page])}
        new: list[RunRows] = []
        for one in page:
            there = known.get(one.run_id)
            if there is None:
                new.append(one)
            elif there["active"]:
                raise _conflict(one, "it is active here: it was retried, or the database was restored")
            elif (there["ns"], there["events"], there["head"]) != (one.run["ns"], one.run["events"], one.run["head"]):
                raise _conflict(
                    one, f"here it has {there['events']} events and another history, in the export {one.run['events']}"
                )
        return new

    async def _written(self, new: list[RunRows]) -> list[RunRows]:
        if not new:
            return new
        runs = [tuple(one.run[name] for name in RUN_COLUMNS) for one in new]
        inserted = {r["run_id"] for r in await fetch(self._c, "import_runs", runs=runs)}
        new = [one for one in new if one.run_id in inserted]
        if not new:
            return new
        await self._rows(new)
        uses = [(*_owner(one), store, sha256) for one in new for store, sha256, _ in one.payloads]
        if uses:
            self._done.missing_payloads += await fetch_value(self._c, "import_uses", rows=uses)
        keys = [
            (one.run["ns"], one.run["key"], one.run_id, one.run["input_hash"])
            for one in new
            if one.run["key"] is not None and one.run["input_hash"] is not None
        ]
        if keys:
            await execute(self._c, "import_keys", rows=keys)
        await execute(self._c, "hold_imported", run_ids=[one.run_id for one in new], days=self._keep_days)
        return new

    async def _rows(self, new: list[RunRows]) -> None:
        """What is stored of the runs beside themselves."""
        tables: dict[str, list[tuple[Any, ...]]] = {
            "import_history": [
                (one.run_id, h.seq, h.last, one.run["ns"], h.epoch, h.at_us, h.stored, h.hash)
                for one in new
                for h in one.history
            ],
            "import_tasks": [(*_owner(one), *(t[name] for name in TASK_COLUMNS)) for one in new for t in one.tasks],
            "import_attempts": [
                (*_owner(one), *(a[name] for name in ATTEMPT_COLUMNS)) for one in new for a in one.attempts
            ],
            "import_states": [(*_owner(one), name, value) for one in new for name, value in one.states],
            "import_node_counts": [(*_owner(one), *count) for one in new for count in one.node_counts],
            "import_logs": [(*_owner(one), *(log[name] for name in LOG_COLUMNS)) for one in new for log in one.logs],
        }
        for query, rows in tables.items():
            if rows:
                await execute(self._c, query, rows=rows)


def _owner(one: RunRows) -> tuple[bytes, int]:
    return one.run_id, one.run["ns"]


def _conflict(one: RunRows, what: str) -> Conflict:
    return Conflict(
        f"the run {ids.text(one.run_id)} cannot be imported: {what}. Nothing of it was changed; to take the exported one, "
        "delete the run here first (`perdure delete`)"
    )
