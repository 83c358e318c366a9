"""Events of a watch, from the history of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from tests.executors.kubernetes_emulator.resources import Object, Target
from tests.executors.kubernetes_emulator.selectors import Selector
from tests.executors.kubernetes_emulator.status import expired
from tests.executors.kubernetes_emulator.store import Change, Forgotten, Store

BOOKMARK_S: Final = 1.0
"""A real server sends one each minute."""


class Watch(NamedTuple):
    target: Target
    selector: Selector
    version: str
    """Empty or 0: what is there comes first."""
    timeout_s: float
    has_bookmarks: bool


async def events(store: Store, watch: Watch) -> AsyncIterator[dict[str, Any]]:
    version = int(watch.version or 0)
    if not version:
        version = store.version
        for obj in store.list(watch.target.resource, watch.target.namespace):
            if _is_selected(watch, obj):
                yield {"type": "ADDED", "object": obj}
    loop = asyncio.get_running_loop()
    end = loop.time() + watch.timeout_s
    while loop.time() < end:
        try:
            changes = store.after(version)
        except Forgotten as e:
            yield {"type": "ERROR", "object": expired(str(e)).as_json()}
            return
        for change in changes:
            version = change.version
            if event := _event(watch, change):
                yield event
        if watch.has_bookmarks and not changes:
            yield _bookmark(watch, version)
        await store.news(version, min(BOOKMARK_S, end - loop.time()))


def _event(watch: Watch, change: Change) -> dict[str, Any] | None:
    """An object that no longer has the labels is deleted, as far as this watch can see."""
    if change.key.resource != watch.target.resource or watch.target.namespace not in ("", change.key.namespace):
        return None
    was = change.before is not None and _is_selected(watch, change.before)
    is_there = change.after is not None and _is_selected(watch, change.after)
    if is_there:
        return {"type": "MODIFIED" if was else "ADDED", "object": change.after}
    if not was or change.before is None:
        return None
    meta = {**change.before["metadata"], "resourceVersion": str(change.version)}
    return {"type": "DELETED", "object": {**change.before, "metadata": meta}}


def _bookmark(watch: Watch, version: int) -> dict[str, Any]:
    resource = watch.target.resource
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"type": "BOOKMARK", "object": {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}}


def _is_selected(watch: Watch, obj: Object) -> bool:
    return watch.selector.matches(obj["metadata"].get("labels") or {})
