"""The attempts of a run, as the view perdure.attempt has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core import ids
from perdure.core.api.attempts import AttemptItem, AttemptPage, AttemptPosition, LogRange
from perdure.core.errors import Failure
from perdure.engine.api.ports import SCAN_ROWS_MAX
from perdure.store.queries import fetch

WINDOW_TASKS: Final = 1_000
"""Tasks whose attempts are read at a time."""
_FIRST: Final = AttemptPosition(-1, 0, 0)
_LAST: Final = (1 << 31) - 1


async def read_attempts(
    c: Any,
    ns: int,
    run_id: bytes,
    seqs: Sequence[int] | None,
    unsuccessful: bool,
    after: AttemptPosition | None,
    limit: int,
) -> AttemptPage:
    """Tasks are numbered without gaps and their ids follow from their numbers: a page costs what it shows. It ends where no task of a
    window has a row, or short after SCAN_ROWS_MAX tasks."""
    place, found, more = after or _FIRST, list[AttemptItem](), True
    named = None if seqs is None else sorted(seq for seq in seqs if seq >= place.seq)
    first = max(place.seq, 0)
    for _ in range(SCAN_ROWS_MAX // WINDOW_TASKS):
        window = range(first, first + WINDOW_TASKS) if named is None else named[:WINDOW_TASKS]
        rows = await fetch(
            c,
            "task_attempts",
            ids=[ids.derive(run_id, ids.TASK, seq) for seq in window],
            run_id=run_id,
            ns=ns,
            unsuccessful=unsuccessful,
            after_seq=place.seq,
            after_epoch=place.epoch,
            after_attempt=place.attempt,
            limit=limit + 1 - len(found),
        )
        more = any(r["exists"] for r in rows) if named is None else len(named) > WINDOW_TASKS
        found += [_item(r) for r in rows if r["attempt"] is not None]
        if len(found) > limit or not more:
            break
        first, place = first + WINDOW_TASKS, AttemptPosition(window[-1], _LAST, _LAST)
        named = None if named is None else named[WINDOW_TASKS:]
    if len(found) > limit:
        last = found[limit - 1]
        return AttemptPage(found[:limit], AttemptPosition(last.seq, last.epoch, last.attempt))
    return AttemptPage(found, place if more else None)


def _item(r: Any) -> AttemptItem:
    failure = None
    if r["error"] is not None or r["error_code"] is not None:
        failure = Failure(
            r["error_code"] or "task_failed", r["error"] or "", r["error_type"] or "", r["traceback"] or ""
        )
    return AttemptItem(
        task_id=r["id"],
        seq=r["seq"],
        name=r["name"],
        node=r["node"],
        epoch=r["epoch"],
        attempt=r["attempt"],
        outcome=r["outcome"],
        is_last=r["is_last"],
        worker=r["worker"],
        started_us=r["started_at"],
        finished_us=r["finished_at"],
        cpu_us=r["cpu_us"],
        failure=failure,
        logs=LogRange(r["log_first"], r["log_last"], r["log_lines"]) if r["log_lines"] is not None else None,
    )
