"""Which tasks stay with the engine that scheduled them, and which runs may leave its memory. Pure.

A short wait in the local line is cheaper than a trip through the database; a long one is a waste of other engines' free slots.
"""

from __future__ import annotations

import msgspec


class Placement(msgspec.Struct, frozen=True):
    horizon_s: float = 0.5
    """Local backlog that will be done within this time is not shared."""
    spill_max: int = 1_000
    """Tasks given away at once."""
    idle_s: float = 2.0
    """A run that has waited this long for something outside leaves memory."""
    near_s: float = 1.0
    """A run whose next timer is nearer than this is not worth evicting."""

    def spill(self, backlog: int, done_per_s: float, others_free: int) -> int:
        """How many tasks of the local line to offer to other engines."""
        if others_free <= 0:
            return 0
        keep = int(done_per_s * self.horizon_s)
        return max(0, min(backlog - keep, self.spill_max, 4 * others_free))

    def may_evict(self, idle_s: float, wake_in_s: float | None, crowded: bool) -> bool:
        """Whether an idle run leaves memory now. `crowded` is when memory holds more than half of what it may."""
        if wake_in_s is not None and wake_in_s < self.near_s:
            return False
        return crowded or idle_s >= self.idle_s
