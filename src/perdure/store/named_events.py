"""The port of named events and webhooks on PostgreSQL."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core.api.named_events import EventEmitted, EventItem, EventStartItem, SignalTarget, WebhookItem
from perdure.core.errors import Conflict
from perdure.core.limits import EVENT_STARTS_SHOWN_MAX, EVENT_WAITS_PAGE, EVENTS_PER_LOOK, WEBHOOKS_MAX
from perdure.core.webhooks import SignatureScheme
from perdure.engine.services.named_events import (
    Find,
    FindPast,
    Hook,
    HookSpec,
    LookRound,
    OpenEvent,
    OpenWait,
    PutHook,
    Round,
)
from perdure.store.clashes import retried
from perdure.store.event_looks import EventRow, event_row, look_back
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row

_START: Final = (bytes(16), "")
"""Before every wait."""
_ID_MAX: Final = (1 << 63) - 1

Place = tuple[bytes, str]
"""(run, promise)"""


@retried()
class PostgresNamedEvents(PostgresPort):
    async def emit(self, ns: int, name: str, key: str | None, body: bytes, source: str) -> EventEmitted:
        row = await self._row("emit_event", ns=ns, name=name, key=key, body=body, source=source)
        if row is None:  # the other one of this key was not yet to be seen
            row = await self._row("emit_event", ns=ns, name=name, key=key, body=body, source=source)
        return EventEmitted(row["id"], row["fresh"])

    async def match(self, find: Find) -> Round:
        """One transaction: some events, a page of waits each, what they reach and how far they are. Runs are touched last and briefly."""
        async with self._pool.take() as c, c.transaction():
            return await self._match(c, find)

    async def look_back(self, find: FindPast) -> LookRound:
        """One transaction: some waits that look back, and a page of past events each."""
        async with self._pool.take() as c, c.transaction():
            return await look_back(c, find)

    async def _match(self, c: Any, find: Find) -> Round:
        events = await fetch(c, "claim_events", limit=EVENTS_PER_LOOK)
        pages: list[_Page] = []
        wanted: dict[Place, EventRow] = {}
        for e in events:
            after = (e["after_run"], e["after_name"]) if e["after_run"] is not None else _START
            rows = await fetch(
                c,
                "event_waits",
                ns=e["ns"],
                event=e["name"],
                before=e["at"],
                after_run_id=after[0],
                after_name=after[1],
                limit=EVENT_WAITS_PAGE,
            )
            page = _Page(e["id"], after, [OpenWait(*r.values()) for r in rows])
            pages.append(page)
            for w in await find(OpenEvent(e["id"], e["ns"], e["name"], e["body"]), page.waits):
                # Of two events in one round the older one is first.
                wanted.setdefault((w.run_id, w.name), event_row(w, e["id"], e["body"]))
        won, held = await self._keep(c, wanted) if wanted else (set[Place](), set[Place]())
        if pages:
            await execute(c, "advance_events", events=[p.advanced(wanted, won, held) for p in pages])
        unfinished = sum(not p.is_done(held) for p in pages)
        return Round(len(pages), list(dict.fromkeys(run_id for run_id, _ in won)), len(held), unfinished)

    async def _keep(self, c: Any, wanted: dict[Place, EventRow]) -> tuple[set[Place], set[Place]]:
        places = list(wanted)
        row = await fetch_row(c, "resolve_event_waits", waits=list(wanted.values()))
        return {places[n - 1] for n in row["won"]}, {places[n - 1] for n in row["held"]}

    async def events(self, ns: int, name: str, before: int | None, limit: int) -> list[EventItem]:
        last = _ID_MAX if before is None else before
        rows = await (
            self._fetch("list_events_named", ns=ns, before_id=last, limit=limit, name=name)
            if name
            else self._fetch("list_events", ns=ns, before_id=last, limit=limit)
        )
        starts: dict[int, list[EventStartItem]] = {}
        known = [r["id"] for r in rows]
        for s in await self._fetch("list_event_starts", event_ids=known, limit=EVENT_STARTS_SHOWN_MAX):
            item = EventStartItem(s["workflow"], s["outcome"], s["run_id"], s["error"])
            starts.setdefault(s["event_id"], []).append(item)
        return [msgspec.structs.replace(EventItem(*r.values()), starts=starts.get(r["id"], [])) for r in rows]

    async def trim(self, older_s: float, limit: int) -> int:
        return len(await self._fetch("delete_old_events", age_s=float(older_s), limit=limit))

    async def put_webhook(self, ns: int, hook: HookSpec, secret: bytes, given: bool, by: str) -> PutHook:
        row = await self._row(
            "put_webhook",
            ns=ns,
            **_spec_columns(hook),
            secret=secret,
            given=given,
            created_by=by,
            webhooks_max=WEBHOOKS_MAX,
        )
        if row is None:
            raise Conflict(f"this namespace has WEBHOOKS_MAX={WEBHOOKS_MAX} webhooks; delete one that is not used")
        return PutHook(_item(hook, row), row["is_new"], row["is_held"])

    async def change_webhook(self, ns: int, hook: HookSpec) -> WebhookItem | None:
        row = await self._row("change_webhook", ns=ns, **_spec_columns(hook))
        return None if row is None else _item(hook, row)

    async def webhook_scheme(self, ns: int, name: str) -> SignatureScheme | None:
        row = await self._row("webhook_scheme", ns=ns, name=name)
        return None if row is None else _scheme(row["scheme"])

    async def rotate_webhook(self, ns: int, name: str, secret: bytes, keep_old_us: int) -> WebhookItem | None:
        row = await self._row("rotate_webhook", ns=ns, name=name, secret=secret, keep_old_us=keep_old_us)
        return None if row is None else _webhook(name, row)

    async def delete_webhook(self, ns: int, name: str) -> bool:
        return await self._row("delete_webhook", ns=ns, name=name) is not None

    async def webhooks(self, ns: int, after: str, limit: int) -> list[WebhookItem]:
        rows = await self._fetch("list_webhooks", ns=ns, after=after, limit=limit)
        return [_webhook(r["name"], r) for r in rows]

    async def hook(self, namespace: str, name: str) -> Hook | None:
        row = await self._row("webhook_secrets", namespace=namespace, name=name)
        if row is None:
            return None
        sealed = [row["secret"]] if row["old_secret"] is None else [row["secret"], row["old_secret"]]
        return Hook(row["ns"], _spec(name, row), sealed)

    async def delivered_to(self, ns: int, key: str) -> bytes | None:
        row = await self._row("delivered_to", ns=ns, key=key)
        return None if row is None else row["run_id"]


def _scheme(text: str) -> SignatureScheme:
    return msgspec.json.decode(text, type=SignatureScheme)


def _spec_columns(hook: HookSpec) -> dict[str, str | None]:
    scheme = msgspec.json.encode(hook.scheme).decode()
    signal = None if hook.signal is None else msgspec.json.encode(hook.signal).decode()
    return {"name": hook.name, "event": hook.event, "key": hook.key, "scheme": scheme, "signal": signal}


def _spec(name: str, row: Any) -> HookSpec:
    signal = None if row["signal"] is None else msgspec.json.decode(row["signal"], type=SignalTarget)
    return HookSpec(name, row["event"], row["key"], _scheme(row["scheme"]), signal)


def _item(hook: HookSpec, row: Any) -> WebhookItem:
    times = row["old_until"], row["created_at"]
    return WebhookItem(hook.name, hook.event, hook.key, hook.scheme, *times, row["created_by"], hook.signal)


def _webhook(name: str, row: Any) -> WebhookItem:
    return _item(_spec(name, row), row)


class _Page:
    """Some of the waits for an event, in order."""

    def __init__(self, event: int, after: Place, waits: list[OpenWait]) -> None:
        self.event, self.after, self.waits = event, after, waits

    def _held_at(self, held: set[Place]) -> int | None:
        """The first wait that has to be asked for again."""
        return next((i for i, w in enumerate(self.waits) if (w.run_id, w.name) in held), None)

    def is_done(self, held: set[Place]) -> bool:
        return len(self.waits) < EVENT_WAITS_PAGE and self._held_at(held) is None

    def advanced(self, wanted: dict[Place, EventRow], won: set[Place], held: set[Place]) -> tuple[Any, ...]:
        """Its row of advance_events. The place is right before the first wait that was held: what was kept after it is not open any more."""
        mine = sum(wanted[p].event_id == self.event for p in won)
        at = self._held_at(held)
        seen = self.waits if at is None else self.waits[:at]
        place = (seen[-1].run_id, seen[-1].name) if seen else self.after
        return self.event, mine, *place, self.is_done(held)
