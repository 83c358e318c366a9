"""Which instance is called next. Pure: the caller passes the time.

Theory. Instances take turns by smooth weighted round robin: each choice gives every instance its weight as credit and takes the sum of the
weights from the one with the most. So the spread follows the weights exactly, and not only on average. The weight is 1, or with
`weighted_by_load` 1 / (1 + load), where the load is what the instance reported or the calls of this worker under way at it, if
those are more: a report is some seconds old, and a burst must not all go to one instance.

An instance that could not be reached is passed over for AWAY_S, unless there is no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

AWAY_S: Final = 5.0
KEPT_MAX: Final = 10_000
"""Instances whose credit is remembered."""


class CallTarget(msgspec.Struct, frozen=True):
    """Where a call can go."""

    url: str
    """The address of the call itself."""
    load: float = 0.0


class Balancer:
    """The choices of one worker."""

    def __init__(self) -> None:
        self._credit: dict[tuple[str, str], float] = {}
        """(service, URL) -> credit."""
        self._under_way: dict[str, int] = {}
        self._away_until: dict[str, float] = {}

    def choose(
        self, service: str, targets: Sequence[CallTarget], tried: Collection[str], now: float, *, is_weighted: bool
    ) -> CallTarget | None:
        """The next one. Those that this call has tried come last."""
        usable = self._preferred(targets, tried, now)
        if not usable:
            return None
        weights = {t.url: self._weight(t) if is_weighted else 1.0 for t in usable}
        for url, weight in weights.items():
            self._credit[service, url] = self._credit.get((service, url), 0.0) + weight
        chosen = max(usable, key=lambda t: self._credit[service, t.url])
        self._credit[service, chosen.url] -= sum(weights.values())
        if len(self._credit) > KEPT_MAX:
            self._credit.clear()
        return chosen

    def _preferred(self, targets: Sequence[CallTarget], tried: Collection[str], now: float) -> list[CallTarget]:
        there = [t for t in targets if self._away_until.get(t.url, now) <= now]
        fresh = [t for t in there if t.url not in tried]
        return fresh or [t for t in targets if t.url not in tried] or there or list(targets)

    def _weight(self, target: CallTarget) -> float:
        return 1 / (1 + max(target.load, self._under_way.get(target.url, 0)))

    def began(self, url: str) -> None:
        self._under_way[url] = self._under_way.get(url, 0) + 1

    def ended(self, url: str) -> None:
        left = self._under_way.get(url, 0) - 1
        if left > 0:
            self._under_way[url] = left
        else:
            self._under_way.pop(url, None)

    def answered(self, url: str) -> None:
        self._away_until.pop(url, None)

    def is_away(self, url: str, now: float) -> None:
        """It could not be reached."""
        if len(self._away_until) > KEPT_MAX:
            self._away_until.clear()
        self._away_until[url] = now + AWAY_S
