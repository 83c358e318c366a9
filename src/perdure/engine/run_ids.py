"""Ids of new runs: the time, the engine's shard, and randomness that is drawn in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import urandom  # bound here, before workflow guards wrap it
from struct import Struct
from typing import Final

from perdure.core import ids

_NUMBERS: Final = Struct("512Q")


class RunIds:
    def __init__(self, shard: int, now_us: Callable[[], int]) -> None:
        self._shard, self._now_us = shard, now_us
        self._randomness: Iterator[int] = iter(())

    def new(self) -> bytes:
        randomness = next(self._randomness, None)
        if randomness is None:
            self._randomness = iter(_NUMBERS.unpack(urandom(_NUMBERS.size)))
            randomness = next(self._randomness)
        return ids.run_id(self._now_us() // 1000, self._shard, randomness)
