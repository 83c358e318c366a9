"""The rows of one commit, column by column, in the order the store's statement takes them."""

from __future__ import annotations

from typing import Any


class Columns:
    """Equally long lists, one per column."""

    __slots__ = ("lists",)

    def __init__(self, width: int) -> None:
        self.lists: tuple[list[Any], ...] = tuple([] for _ in range(width))

    def add(self, *row: Any) -> None:
        for column, value in zip(self.lists, row, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self.lists[0])


class Batch:
    """One transaction. Field comments name the columns."""

    __slots__ = (
        "appends",
        "closes",
        "consumed",
        "ended",
        "posts",
        "promises",
        "queued",
        "releases",
        "reports",
        "requeued",
        "starts",
        "states",
        "tasks",
        "unqueued",
    )

    def __init__(self) -> None:
        self.starts = Columns(10)  # run_id ns workflow version key input_hash parent_id parent_seq own body
        self.appends = Columns(6)  # run_id seq last ns epoch body
        self.closes = Columns(6)  # run_id status events error_code error successor
        self.releases = Columns(3)  # run_id wake_us stuck
        self.tasks = Columns(
            14
        )  # id ns run_id seq name queue status attempts lost epoch scheduled_us started_us finished_us error
        self.queued = Columns(
            14
        )  # id ns run_id seq name queue status attempt lost delay_us scheduled_us options input error
        self.unqueued = Columns(1)  # id
        self.reports = Columns(3)  # id attempt body
        self.posts = Columns(2)  # run_id body
        self.consumed = Columns(1)  # inbox id
        self.ended = Columns(2)  # run_id successor: runs whose mail and promises go with them
        self.promises = Columns(3)  # run_id name ns
        self.states = Columns(4)  # run_id name ns value
        self.requeued = Columns(5)  # id attempt lost delay_us error

    def main(self) -> list[list[Any]]:
        return [c for group in (self.starts, self.appends, self.closes, self.releases, self.tasks) for c in group.lists]

    def rest(self) -> list[list[Any]]:
        groups = (
            self.queued,
            self.unqueued,
            self.reports,
            self.posts,
            self.consumed,
            self.ended,
            self.promises,
            self.states,
            self.requeued,
        )
        return [c for group in groups for c in group.lists]

    @property
    def has_rest(self) -> bool:
        return any(
            len(g)
            for g in (
                self.queued,
                self.unqueued,
                self.reports,
                self.posts,
                self.consumed,
                self.ended,
                self.promises,
                self.states,
                self.requeued,
            )
        )

    @property
    def rows(self) -> int:
        return sum(len(getattr(self, name)) for name in self.__slots__)
