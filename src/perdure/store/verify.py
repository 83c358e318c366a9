"""Reads a database for core/invariants, page by page.

A page is some runs with everything about them, read in one REPEATABLE READ snapshot; the next page has a new one. So each run is seen
whole, a live system can be verified, and no transaction stays open long enough to hold up vacuum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby, islice
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.errors import InvalidInput, PayloadCorrupt, PayloadKeyMissing
from perdure.core.events import Recorded
from perdure.core.flow_control.groups import decode_needs
from perdure.core.invariants import (
    AT_REST,
    EXAMPLES_MAX,
    INVARIANTS,
    LEDGER,
    NEEDS,
    STARTS,
    AcknowledgedSignal,
    Findings,
    LedgerLine,
    RunColumns,
    RunFold,
    StoredAttempt,
    StoredKey,
    StoredPromise,
    StoredRun,
    StoredTask,
    Tally,
    TaskColumns,
    check_answers,
    check_attempts,
    check_deadline,
    check_executions,
    check_keys,
    check_promises,
    unopened,
    unreadable,
)
from perdure.core.invariants.signals import SignalBook
from perdure.core.messages import SignalMessage
from perdure.core.payloads import MARK
from perdure.store.connections import connect
from perdure.store.queries import fetch, fetch_row, fetch_value, opened, queries
from perdure.store.verify_payloads import KnownStores, PayloadReader, state_hash
from perdure.store.words import run_status, task_status
from perdure.wire.codec import decode_events, decode_message, decode_row

PAGE_RUNS: Final = 200
PAGE_TASKS: Final = 5_000
PAGE_STARTS: Final = 1_000
PAGE_DOCUMENTS: Final = 20
HISTORY_FETCHED: Final = 100
"""Rows of history in memory at a time: histories can be larger than that."""
_NOTHING: Final = bytes(16)


async def verify(
    dsn: str,
    *,
    ledger: Iterator[LedgerLine] | None = None,
    names: frozenset[str] = frozenset(),
    starts: Iterable[str] | None = None,
    signals: Iterable[AcknowledgedSignal] = (),
    at_rest: bool = False,
    stores: KnownStores | None = None,
) -> list[Tally]:
    """Check every invariant there is material for; list the others with what they need.

    `ledger` comes sorted by run and time; `names` are the tasks that write it. `starts` are acknowledged run ids, `signals` acknowledged
    signals in the order of their senders. `at_rest` says that nothing is going on any more, so that leftovers and unfinished runs count.
    `stores` are the object stores whose content can be read here.
    """
    given = {LEDGER: ledger is not None, STARTS: starts is not None, AT_REST: at_rest}
    findings = Findings(n for n in INVARIANTS if n not in NEEDS or given[NEEDS[n]])
    connection = await connect(dsn)
    try:
        payloads = PayloadReader(connection, findings, stores)
        reader = _Reader(connection, findings, payloads, _ByRun(ledger), names, SignalBook(signals))
        await reader.runs()
        await payloads.contents()
        await reader.orphan_tasks()
        await reader.messages()
        await reader.places()
        await reader.slots()
        await reader.batches()
        await reader.kinds()
        await reader.audit()
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


class _VerifyPage:
    """Some runs with all their rows."""

    def __init__(self, run_ids: list[bytes], findings: Findings) -> None:
        self.folds = {r: RunFold(r, findings) for r in run_ids}
        self.runs: defaultdict[bytes, list[StoredRun]] = defaultdict(list)
        self.tasks: defaultdict[bytes, list[StoredTask]] = defaultdict(list)
        self.attempts: defaultdict[bytes, list[StoredAttempt]] = defaultdict(list)
        self.queued: defaultdict[bytes, dict[int, int]] = defaultdict(dict)
        self.state: defaultdict[bytes, dict[str, bytes]] = defaultdict(dict)
        self.keys: defaultdict[bytes, list[StoredKey]] = defaultdict(list)
        self.promises: defaultdict[bytes, list[StoredPromise]] = defaultdict(list)
        self.namespaces: list[tuple[str, bytes, int]] = []
        """Table, run, namespace of rows that belong to runs of this page."""
        self.clock_us = 0
        self.active_children: frozenset[bytes] = frozenset()


class _Reader:
    def __init__(
        self,
        connection: Any,
        findings: Findings,
        payloads: PayloadReader,
        ledger: _ByRun,
        names: frozenset[str],
        signals: SignalBook,
    ) -> None:
        self._c, self._findings, self._ledger, self._names, self._signals = connection, findings, ledger, names, signals
        self._payloads = payloads
        self._dropped = _NOTHING
        """Retention may have taken ended runs below this id, whole or in part."""

    async def runs(self) -> None:
        after = _NOTHING
        self._dropped = await fetch_value(self._c, "verify_retention") or _NOTHING
        await self._payloads.begin()
        while True:
            async with self._c.transaction(isolation="repeatable_read", readonly=True):
                run_ids = [r["run_id"] for r in await fetch(self._c, "verify_page", after=after, limit=PAGE_RUNS)]
                if not run_ids:
                    break
                page = await self._read(run_ids)
            self._judge(page)
            after = run_ids[-1]
        for run, lines in self._ledger.rest():
            self._unknown(run, lines)

    async def _read(self, run_ids: list[bytes]) -> _VerifyPage:
        page = _VerifyPage(run_ids, self._findings)
        for r in await fetch(self._c, "verify_runs", run_ids=run_ids):
            page.runs[r["run_id"]].append(_stored_run(r))
            page.clock_us = r["clock"]
        for run_id, fold in page.folds.items():
            fold.keep_signals = self._signals.wants(run_id)
        # A cursor by name: those of the driver need prepared statements, which a transaction-pooling proxy mixes up.
        await self._c.execute(
            f"declare verified_history no scroll cursor for {queries()['verify_history'].sql}", run_ids
        )
        while rows := await self._c.fetch(f"fetch {HISTORY_FETCHED} from verified_history"):
            readable = await opened(self._c, queries()["verify_history"], rows, {})
            for r, plain in zip(rows, readable, strict=True):
                self._history_row(page.folds[r["run_id"]], r, plain)
            await self._payloads.look_up()
        await self._c.execute("close verified_history")
        await self._payloads.look_up(all_of_them=True)
        for run_id, fold in page.folds.items():
            if fold.retries and not fold.broken:
                fold.again(await self._whole(run_id))
        await self._fires(page)
        lowest, highest = run_ids[0][:8] + bytes(8), run_ids[-1][:8] + b"\xff" * 8
        for r in await fetch(self._c, "verify_tasks", low=lowest, high=highest, run_ids=run_ids):
            page.tasks[r["run_id"]].append(_stored_task(r))
        for r in await fetch(self._c, "verify_queued", run_ids=run_ids):
            page.queued[r["run_id"]][r["seq"]] = r["attempt"]
        for r in await fetch(self._c, "verify_attempts", low=lowest, high=highest, run_ids=run_ids):
            page.namespaces.append(("task_attempt", r["run_id"], r["ns"]))
            page.attempts[r["run_id"]].append(StoredAttempt(r["seq"], r["epoch"], r["attempt"], r["outcome"]))
        for r in await fetch(self._c, "verify_state", run_ids=run_ids):
            if not page.folds[r["run_id"]].closed:
                page.state[r["run_id"]][r["name"]] = state_hash(r)
        for r in await fetch(self._c, "verify_keys", run_ids=run_ids):
            page.keys[r["run_id"]].append(StoredKey(r["ns"], r["key"], r["input_hash"]))
        for r in await fetch(self._c, "verify_promises", run_ids=run_ids):
            page.promises[r["run_id"]].append(
                StoredPromise(r["name"], r["kind"], r["is_resolved"], r["is_asked"], r["question"])
            )
        for r in await fetch(self._c, "verify_namespaces", run_ids=run_ids):
            page.namespaces.append((r["kind"], r["run_id"], r["ns"]))
        parents = {
            f.started.parent_id: r for r, f in page.folds.items() if f.started is not None and f.started.parent_id
        }
        if parents:
            for r in await fetch(self._c, "verify_parents", run_ids=list(parents)):
                page.namespaces.append(("its parent", parents[r["run_id"]], r["ns"]))
        children = [c for fold in page.folds.values() for c in fold.state.children.values()]
        if children and 21 in self._findings:
            page.active_children = frozenset(
                r["run_id"] for r in await fetch(self._c, "verify_active", run_ids=children)
            )
        return page

    def _history_row(self, fold: RunFold, r: Any, plain: Any) -> None:
        """The chain covers a row as it is stored, without any key."""
        fold.chained(r["ns"], r["seq"], r["last"], r["epoch"], r["at"], r["body"], r["hash"])
        try:
            body = plain["body"]
            events = decode_events(body)
        except PayloadKeyMissing:
            if not fold.closed:
                self._findings.pass_over(4)
            unopened(fold, r["seq"], r["last"], r["epoch"], r["at"], self._findings)
        except (InvalidInput, PayloadCorrupt, msgspec.DecodeError) as e:
            unreadable(fold, r["seq"], r["last"], str(e), self._findings)
        else:
            fold.row(r["seq"], r["last"], r["epoch"], r["at"], events)
            if MARK in body:
                self._payloads.refer(r["run_id"], r["ns"], events)

    async def _fires(self, page: _VerifyPage) -> None:
        """A nominal time names one run. Every run that a schedule started must be the one that its time names."""
        asked = [(run_id, *fold.scheduled) for run_id, fold in page.folds.items() if fold.scheduled is not None]
        if not asked:
            return
        self._findings.examine(15, len(asked))
        for r in await fetch(self._c, "verify_fires", runs=asked):
            what = f"the schedule {r['name']} started it, and its nominal time belongs to {r['other'] or 'no run'}"
            self._findings.violate(15, ids.text(r["run_id"]), what)

    async def _whole(self, run_id: bytes) -> list[Recorded]:
        rows = await fetch(self._c, "verify_history", run_ids=[run_id])
        return [r for row in rows for r in decode_row(row["seq"], row["at"], row["body"])]

    def _judge(self, page: _VerifyPage) -> None:
        for kind, run_id, ns in page.namespaces:
            self._findings.examine(22)
            if page.folds[run_id].ns not in (None, ns):
                what = f"{kind} belongs to namespace {ns}, the run to {page.folds[run_id].ns}"
                self._findings.violate(22, ids.text(run_id), what)
        for run_id, fold in page.folds.items():
            stored = page.runs[run_id]
            if self._is_dropped(fold, stored):
                continue
            fold.settle(stored, page.tasks[run_id], list(page.queued[run_id]), page.state[run_id], page.active_children)
            check_attempts(fold, page.tasks[run_id], page.attempts[run_id], page.queued[run_id], self._findings)
            check_promises(fold, page.promises[run_id], self._findings)
            check_answers(fold, self._findings)
            check_keys(fold, page.keys[run_id], self._findings, active=any(one.active for one in stored))
            for one in stored:
                check_deadline(fold, one, page.clock_us, self._findings)
            self._signals.received(fold)
            executed: list[LedgerLine] = []
            for run, lines in self._ledger.up_to(fold.text):
                if run == fold.text:
                    executed = lines
                else:
                    self._unknown(run, lines)
            check_executions(fold, page.tasks[run_id], executed, self._names, self._findings)

    def _is_dropped(self, fold: RunFold, stored: list[StoredRun]) -> bool:
        """The tables are dropped by day, one after the other: what is left of an ended run of such a day is no damage."""
        ended = not any(one.active for one in stored)
        return ended and fold.run_id < self._dropped and (not stored or not fold.last)

    async def messages(self) -> None:
        after = 0
        while rows := await fetch(self._c, "verify_messages", after=after, limit=PAGE_TASKS):
            for r in rows:
                self._findings.examine(16)
                try:
                    message = decode_message(r["body"])
                except PayloadKeyMissing:
                    self._findings.pass_over(16)
                except (InvalidInput, PayloadCorrupt, msgspec.DecodeError) as e:
                    self._findings.violate(16, ids.text(r["run_id"]), f"inbox row {r['id']} cannot be read: {e}")
                else:
                    if isinstance(message, SignalMessage):
                        self._signals.pending(r["run_id"], message)
            after = rows[-1]["id"]
        self._signals.settle(self._findings)

    async def places(self) -> None:
        """Where messages lie, and what keys and chains name. Retention may be about to follow a run that it has taken."""
        for number, statement in ((26, "verify_places"), (28, "verify_chains")):
            self._findings.examine(number, (await fetch_row(self._c, f"{statement}_examined"))["examined"])
            for r in await fetch(self._c, statement):
                if r["run_id"] >= self._dropped:
                    self._findings.violate(number, ids.text(r["run_id"]), r["what"])

    async def slots(self) -> None:
        for r in await fetch(self._c, "verify_slots"):
            self._findings.examine(13, r["held"])
            run = ids.text(r["run_id"])
            limits = [n.max for text in r["needs"] or () for n in decode_needs(text).limits if n.key == r["key"]]
            if limits and r["held"] > max(limits):
                self._findings.violate(13, run, f"{r['held']} hold {r['key']}, {max(limits)} may")
            if r["rule"] is not None and r["since_rule"] > r["rule"]:
                self._findings.violate(13, run, f"{r['since_rule']} took {r['key']} since its rule says {r['rule']}")
            if r["unheld"]:
                self._findings.violate(
                    13, run, f"{r['unheld']} slots of {r['key']} are held by nothing that is in flight"
                )
        for r in await fetch(self._c, "verify_missing_slots"):
            self._findings.examine(13)
            missing = [n.key for n in decode_needs(r["needs"]).limits if n.key not in r["keys"]]
            if missing:
                self._findings.violate(
                    13, ids.text(r["run_id"]), f"{r['what']} is in flight without a slot of {missing[0]}"
                )

    async def batches(self) -> None:
        for r in await fetch(self._c, "verify_batches"):
            self._findings.examine(20, max(r["items"], 1))
            run = ids.text(r["run_id"])
            if r["items"] < 0:
                self._findings.violate(20, run, f"{r['found']} inputs wait for a batched start that does not exist")
            elif r["found"] != r["bytes"]:
                self._findings.violate(
                    20, run, f"the batched start took {r['bytes']} bytes of items, and has {r['found']}"
                )
            if r["begun"]:
                self._findings.violate(20, run, "the batched start waits although its run is there")

    async def kinds(self) -> None:
        """Columns `kind` that no history tells: of groups, deferred starts and definitions."""
        for r in await fetch(self._c, "verify_kinds"):
            self._findings.violate(r["invariant"], ids.text(r["run_id"]) if r["run_id"] else "", r["what"])
        at = {"ns": 0, "workflow": "", "version": ""}
        while rows := await fetch(self._c, "verify_documents", **at, limit=PAGE_DOCUMENTS):
            for r in rows:
                if r["kind"] != "code" and r["kind"] != (_kind_of(r["document"]) or r["kind"]):
                    what = f"version {r['version']} of the workflow {r['workflow']} is of kind {r['kind']}, which its document is not"
                    self._findings.violate(4, "", what)
            at = {name: rows[-1][name] for name in at}

    async def audit(self) -> None:
        """The chain's lines in order, from the beginning; see perdure.audit_hash."""
        after, before = 0, bytes(32)
        async with self._c.transaction(isolation="repeatable_read", readonly=True):
            head = await fetch_row(self._c, "verify_audit_head")
            while rows := await fetch(self._c, "verify_audit", after=after, limit=PAGE_TASKS):
                for r in rows:
                    self._findings.examine(23)
                    if r["n"] != after + 1:
                        self._findings.violate(23, "", f"line {after} of the audit log is followed by line {r['n']}")
                    if not r["found"]:
                        self._findings.violate(23, "", f"line {r['n']} of the audit log (id {r['id']}) is gone")
                    elif sha256(before + r["line"].encode()).digest() != r["hash"]:
                        self._findings.violate(
                            23, "", f"line {r['n']} of the audit log (id {r['id']}) or the chain before it was changed"
                        )
                    after, before = r["n"], r["hash"]
        if head is None:
            self._findings.violate(23, "", "the head of the audit log is gone")
            return
        if (head["n"], head["hash"]) != (after, before):
            self._findings.violate(23, "", f"the audit log has {head['n']} lines, and its chain ends with line {after}")
        if head["unchained"] is not None:
            self._findings.violate(23, "", f"the audit log has a line (id {head['unchained']}) that was never chained")

    def _unknown(self, run: str, lines: list[LedgerLine]) -> None:
        self._findings.violate(1, run, f"executed {lines[0].name} and is not in the database")

    async def orphan_tasks(self) -> None:
        after = _NOTHING
        while rows := await fetch(self._c, "verify_orphan_tasks", after=after, limit=PAGE_TASKS):
            for r in rows:
                if r["orphan"] and r["run_id"] >= self._dropped:
                    self._findings.violate(4, ids.text(r["run_id"]), f"task {r['seq']} has a row and its run none")
            after = rows[-1]["id"]

    async def starts(self, starts: Iterable[str]) -> None:
        remaining = iter(starts)
        while page := list(islice(remaining, PAGE_STARTS)):
            wanted = [ids.parse(s) for s in page]
            self._findings.examine(1, len(wanted))
            for r in await fetch(self._c, "verify_known", run_ids=wanted):
                if r["times"] != 1:
                    what = f"acknowledged and found {r['times']} times"
                    self._findings.violate(1, ids.text(r["run_id"]), what)

    async def leftovers(self) -> None:
        row = await fetch_row(self._c, "verify_leftovers_examined")
        self._findings.examine(17, row["examined"])
        for r in await fetch(self._c, "verify_leftovers", limit=EXAMPLES_MAX * 20):
            self._findings.violate(17, ids.text(r["run_id"]), f"{r['kind']}: {r['what']}")


def _stored_run(r: Any) -> StoredRun:
    columns = RunColumns(
        ns=r["ns"],
        workflow=r["workflow"],
        version=r["version"],
        kind=r["kind"],
        key=r["key"],
        parent_id=r["parent_id"],
        parent_seq=r["parent_seq"],
        created_us=r["created_at"],
        finished_us=r["finished_at"],
        error_code=r["error_code"],
        error=r["error"],
        successor=r["successor"],
        attributes=r["attributes"],
        head=r["head"],
        pin=r["pin"],
    )
    return StoredRun(r["active"], run_status(r["status"]), r["epoch"], r["events"], r["stuck"], r["due"], columns)


def _kind_of(document: str) -> str | None:
    """None: it is no JSON object, and its runs are stuck with that reason."""
    try:
        fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return None
    return "dag" if "tasks" in fields else "graph"


def _stored_task(r: Any) -> StoredTask:
    columns = TaskColumns(
        ns=r["ns"],
        queue=r["queue"],
        node=r["node"],
        error=r["error"],
        scheduled_us=r["scheduled_at"],
        started_us=r["started_at"],
        finished_us=r["finished_at"],
        error_code=r["error_code"],
    )
    return StoredTask(
        r["id"],
        r["seq"],
        r["name"],
        task_status(r["status"]),
        r["attempts"],
        r["lost"],
        r["epoch"],
        columns,
        r["copied"],
    )
