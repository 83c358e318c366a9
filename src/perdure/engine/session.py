"""The session under which an engine owns runs and writes.

Every part that writes or claims reads the id from here, so that a lost session is lost for all of them at the same moment.
"""

from __future__ import annotations

from time import monotonic


class EngineSession:
    __slots__ = ("commits", "id", "others", "others_free", "renewed_s")

    def __init__(self) -> None:
        self.id = 0
        """0: no session. Results of queries made under an earlier session are ignored."""
        self.commits = 0
        """Number of the last commit under it."""
        self.renewed_s = 0.0
        """When it was last written, by the monotonic clock."""
        self.others = self.others_free = 0
        """Other engines, and the free slots that they have, as of the last renewal."""

    def begin(self, id: int) -> None:
        self.id, self.commits, self.renewed_s = id, 0, monotonic()

    def renewed(self, others: int, others_free: int) -> None:
        self.others, self.others_free, self.renewed_s = others, others_free, monotonic()

    def lose(self) -> None:
        self.id = 0

    def next_commit(self) -> int:
        self.commits += 1
        return self.commits
