"""Waits for named events that look back: one round, in one transaction of the caller.

    claim looks -> a page of events each -> the oldest event that fits -> promises and inboxes -> how far each look is

The rows of the looks are locked throughout, so no other engine looks for the same wait. An engine that dies loses its round; the next one begins
where the last committed round ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.core.events import PromiseKind
from perdure.core.limits import EVENT_LOOK_BYTES, EVENT_LOOK_PAGE, EVENT_LOOKS_PER_ROUND
from perdure.core.messages import PromiseMessage
from perdure.core.questions import question_of
from perdure.engine.services.named_events import FindPast, LookRound, OpenEvent, OpenWait
from perdure.store.queries import execute, fetch, fetch_row
from perdure.wire.codec import encode_message


class EventRow(NamedTuple):
    """A wait and the event that it gets: a row of resolve_event_waits."""

    run_id: bytes
    name: str
    body: bytes
    """The message for the inbox of the run."""
    event_id: int
    question: bytes


class _Look(msgspec.Struct):
    """A look and what its page brought."""

    row: Any
    events: Sequence[Any] = ()
    found: OpenEvent | None = None

    @property
    def is_open(self) -> bool:
        return self.row["spec"] is not None

    def advanced(self) -> tuple[Any, ...] | None:
        """Its row of advance_event_looks; None: it is over. A page that isn't full may still not be the last one, because of its bytes."""
        row = self.row
        if self.events:
            last = self.events[-1]
            return row["id"], last["at"], last["id"], row["late_xid"], row["is_final"]
        return None if row["is_final"] else (row["id"], row["since"], 0, row["late_xid"], True)


async def look_back(c: Any, find: FindPast) -> LookRound:
    looks = [_Look(row) for row in await fetch(c, "claim_event_looks", limit=EVENT_LOOKS_PER_ROUND)]
    for look in looks:
        if look.is_open:
            await _read_page(c, look, find)
    found = [look for look in looks if look.found is not None]
    won, held = await _give(c, found) if found else (set[int](), set[int]())
    over = [look.row["id"] for look in found if look.row["id"] not in held]
    over += [look.row["id"] for look in looks if not look.is_open]
    advanced = [(look.row["id"], look.advanced()) for look in looks if look.is_open and look.found is None]
    over += [id for id, row in advanced if row is None]
    if going := [row for _, row in advanced if row is not None]:
        await execute(c, "advance_event_looks", looks=going)
    if over:
        await execute(c, "delete_event_looks", ids=over)
    reached = [look.row["run_id"] for look in found if look.row["id"] in won]
    return LookRound(len(looks), list(dict.fromkeys(reached)), len(held))


async def _read_page(c: Any, look: _Look, find: FindPast) -> None:
    row = look.row
    page = {
        "run_id": row["run_id"],
        "wait_key": row["wait_key"],
        "created_at": row["created_at"],
        "ns": row["ns"],
        "event": row["event"],
        "after_at": row["after_at"],
        "after_id": row["after_id"],
        "limit": EVENT_LOOK_PAGE,
        "bytes": EVENT_LOOK_BYTES,
    }
    if row["is_final"]:
        look.events = await fetch(c, "late_events", late_xid=row["late_xid"], **page)
    else:
        look.events = await fetch(c, "past_events", **page)
    open_events = [OpenEvent(e["id"], row["ns"], row["event"], e["body"]) for e in look.events if e["body"] is not None]
    look.found = await find(OpenWait(row["run_id"], row["name"], row["spec"]), open_events)


async def _give(c: Any, found: list[_Look]) -> tuple[set[int], set[int]]:
    """Ids of the looks whose waits got their events, and of those whose runs are locked: they are claimed again as they are."""
    events = [(look.row, look.found) for look in found if look.found is not None]
    await fetch(c, "lock_found_events", ids=sorted({e.id for _, e in events}))
    waits = [event_row(OpenWait(row["run_id"], row["name"], row["spec"]), e.id, e.body) for row, e in events]
    given = await fetch_row(c, "resolve_event_waits", waits=waits)
    matched = Counter(events[n - 1][1].id for n in given["won"])
    if matched:
        await execute(c, "count_found_events", events=list(matched.items()))
    return {events[n - 1][0]["id"] for n in given["won"]}, {events[n - 1][0]["id"] for n in given["held"]}


def event_row(wait: OpenWait, event_id: int, body: bytes) -> EventRow:
    """The event is for the question that the wait asks."""
    question = question_of(PromiseKind.EVENT, wait.spec.encode())
    message = PromiseMessage(wait.name, body, True, question, event_id)
    return EventRow(wait.run_id, wait.name, encode_message(message), event_id, question)
