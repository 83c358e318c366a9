"""Acts on named events."""

from __future__ import annotations

from perdure.core.api import named_events as acts
from perdure.core.api.named_events import EmitEvent, EventEmitted, EventPage, ListEvents
from perdure.engine.api.api import NamespaceApi, handles, page_limit


@handles(acts.EMIT)
async def emit(api: NamespaceApi, r: EmitEvent) -> EventEmitted:
    """The event reaches the runs that wait for it right after it is durable."""
    emitted = await api.engine.named_events.emit(api.ns, r.name, r.payload, key=r.key, source=api.by)
    if emitted.is_new:
        await api.record("event.emit", r.name, id=emitted.id)
    return emitted


@handles(acts.LIST)
async def list_events(api: NamespaceApi, r: ListEvents) -> EventPage:
    limit = page_limit(r.limit)
    found = await api.engine.named_events.store.events(api.ns, r.name, r.before, limit + 1)
    return EventPage(found[:limit], found[limit - 1].id if len(found) > limit else None)
