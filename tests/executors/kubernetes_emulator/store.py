"""Objects, their versions, and a bounded history for watches. An object that is stored is never changed, but replaced."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from tests.executors.kubernetes_emulator.resources import Key, Object, Resource, key_of

FIRST_VERSION: Final = 100
"""As if the server had a past that it has forgotten."""
HISTORY_MAX: Final = 10_000


class Change(NamedTuple):
    version: int
    key: Key
    before: Object | None
    after: Object | None


class Forgotten(Exception):
    """The history does not go back so far."""


class Store:
    def __init__(self) -> None:
        self.version = FIRST_VERSION
        self.objects: dict[Key, Object] = {}
        self._history: deque[Change] = deque()
        self._oldest = FIRST_VERSION
        """Watches may begin here or later."""
        self._news = asyncio.Event()

    def get(self, key: Key) -> Object | None:
        return self.objects.get(key)

    def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        """By name. Without a namespace: of all."""
        found = sorted(
            (key for key in self.objects if key.resource == resource and namespace in ("", key.namespace)),
            key=lambda key: (key.namespace, key.name),
        )
        return [self.objects[key] for key in found]

    def put(self, resource: Resource, obj: Object) -> Object:
        key = key_of(resource, obj)
        version = self.version + 1
        after = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}
        self._record(key, self.objects.get(key), after)
        self.objects[key] = after
        return after

    def remove(self, key: Key) -> Object:
        before = self.objects.pop(key)
        self._record(key, before, None)
        return {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}

    def forget_history(self) -> None:
        """Every version that a client knows is too old after this."""
        self.version += 1
        self._oldest = self.version
        self._history.clear()
        self._tell()

    def after(self, version: int) -> list[Change]:
        """Raises Forgotten."""
        if version < self._oldest:
            raise Forgotten(f"too old resource version: {version} ({self._oldest})")
        found: list[Change] = []
        for change in reversed(self._history):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]

    async def news(self, known: int, timeout_s: float) -> None:
        """Wait for a version after the known one."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version <= known:
                    await self._news.wait()
        except TimeoutError:
            pass

    def _record(self, key: Key, before: Object | None, after: Object | None) -> None:
        self.version += 1
        self._history.append(Change(self.version, key, before, after))
        if len(self._history) > HISTORY_MAX:
            self._oldest = self._history.popleft().version
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
