"""Sets that come into being with their first item. An empty set takes 216 bytes, and each run would have nine that it never uses."""

from __future__ import annotations

from typing import Any, Final, TypeVar

T = TypeVar("T")

LazySet = set[T] | frozenset[T]
EMPTY: Final[frozenset[Any]] = frozenset()


def added(held: LazySet[T], item: T) -> set[T]:
    """The set with the item, to be kept instead of `held`."""
    if isinstance(held, set):
        held.add(item)
        return held
    return {*held, item}


def discard(held: LazySet[T], item: T) -> None:
    if isinstance(held, set):
        held.discard(item)
