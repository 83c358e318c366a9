"""What the committer needs from the database."""

from __future__ import annotations

from typing import Protocol

import msgspec

from perdure.engine.commits.rows import Batch


class Committed(msgspec.Struct, frozen=True):
    """`unconfirmed`: the answer was lost; the transaction took effect, and this was read back from what it wrote."""

    at_us: int
    started: frozenset[bytes]
    unconfirmed: bool = False


class NotCommitted(Exception):
    """The transaction did not take effect and never will; it may be written again under a new number."""


class Poison(Exception):
    """The database refuses the contents of the batch. Some row of it is at fault."""


class EndsRefused(Exception):
    """Nothing was written, because runs would have ended with unread messages. `examined`: those messages may still be read, so the runs are
    decided once more. Otherwise their engine did not know of any messages, and says now what becomes of them."""

    def __init__(self, run_ids: frozenset[bytes], *, examined: bool) -> None:
        super().__init__(f"{len(run_ids)} runs have unread messages")
        self.run_ids, self.examined = run_ids, examined


class CommitStore(Protocol):
    @property
    def away_s(self) -> float:
        """Seconds since connections began to fail; 0 when the last one succeeded."""
        ...

    def seal_history(self, run_id: bytes, body: bytes) -> bytes:
        """Encoded events as a row of the history stores them."""
        ...

    async def commit(self, session: int, number: int, batch: Batch) -> Committed: ...
