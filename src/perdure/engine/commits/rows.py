"""The rows of one commit, group by group, in the order the store's statements take them."""

from __future__ import annotations

from typing import Any


class Rows:
    """Rows of one kind. They are gathered as tuples and turned into columns at once, which is cheapest."""

    __slots__ = ("rows", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[tuple[Any, ...]] = []

    def add(self, *row: Any) -> None:
        self.rows.append(row)

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self) -> list[Any]:
        if not self.rows:
            return [[]] * self.width
        assert len(self.rows[0]) == self.width
        return list(zip(*self.rows, strict=True))


class Batch:
    """One transaction. Field comments name the columns."""

    def __init__(self) -> None:
        # run_id ns workflow version key input_hash parent_id parent_seq own body attributes line deadline_us hash
        self.starts = Rows(14)
        # run_id seq last ns epoch body hash
        self.appends = Rows(7)
        # run_id status events error_code error successor head
        self.closes = Rows(7)
        # run_id wake_us stuck waiting_on waits deadline_us events head
        self.releases = Rows(8)
        # id ns run_id seq name queue status attempts lost epoch scheduled_us started_us finished_us error node
        self.tasks = Rows(15)
        # id ns run_id seq name queue status attempt lost delay_us scheduled_us options input error trace node line expires_us
        self.queued = Rows(18)
        # id
        self.unqueued = Rows(1)
        # id attempt body
        self.reports = Rows(3)
        # run_id body stops
        self.posts = Rows(3)
        # inbox id
        self.consumed = Rows(1)
        # run_id successor: runs whose mail and promises go with them
        self.ended = Rows(2)
        # run_id name ns kind spec
        self.promises = Rows(5)
        # run_id name ns value
        self.states = Rows(4)
        # id attempt lost delay_us error expires_us
        self.requeued = Rows(6)
        # id ns kind queue name workflow fair weight priority needs delay_us
        self.lines = Rows(11)
        # run_id waiting_on waits
        self.noted = Rows(3)
        # run_id id ns value failure
        self.answers = Rows(5)
        # run_id: runs whose history tells since this commit that they are to stop
        self.stopping = Rows(1)
        # run_id version: of the code that a run begins with, where its starter had another
        self.versions = Rows(2)

    def _main(self) -> tuple[Rows, ...]:
        return self.starts, self.appends, self.closes, self.releases, self.tasks

    def _rest(self) -> tuple[Rows, ...]:
        return (
            self.queued, self.unqueued, self.reports, self.posts, self.consumed, self.ended, self.promises, self.states,
            self.requeued, self.lines, self.noted, self.answers, self.stopping, self.versions,
        )  # fmt: skip

    def main(self) -> list[Any]:
        """Columns that were added later come last, those of the hash chain after all others."""
        starts, appends, closes, releases = (g.columns() for g in self._main()[:4])
        return [
            *starts[:10], *appends[:6], *closes[:6], *releases[:5], *self.tasks.columns(), *starts[10:13], releases[5],
            starts[13], appends[6], closes[6], *releases[6:],
        ]  # fmt: skip

    def rest(self) -> list[Any]:
        """Columns and groups that were added later come last."""
        late = {self.requeued: 5, self.posts: 2}
        columns = {group: group.columns() for group in self._rest()}
        first = (column for group in self._rest()[:-2] for column in columns[group][: late.get(group, group.width)])
        return [
            *first,
            columns[self.requeued][5],
            columns[self.posts][2],
            *columns[self.stopping],
            *columns[self.versions],
        ]

    @property
    def has_rest(self) -> bool:
        return any(group.rows for group in self._rest())

    @property
    def rows(self) -> int:
        return sum(len(group) for group in (*self._main(), *self._rest()))
